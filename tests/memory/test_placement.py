"""Which positions of a prompt are captured."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from svc.memory.placement import Boundary, BoundaryKind, Wanted, WantedKind, next_generated_capture, plan_captures
from svc.memory.sequence_cache import SequenceCache
from tests.memory.device_model import small_plan

PROMPTS = st.integers(1, 20_000)
BOUNDARIES = st.lists(st.builds(Boundary, st.integers(0, 21_000), st.sampled_from(BoundaryKind)), max_size=12)
POSITIONS = st.lists(st.integers(0, 21_000), max_size=3)


def message(position: int) -> Boundary:
    return Boundary(position, BoundaryKind.MESSAGE_START)


def system(position: int) -> Boundary:
    return Boundary(position, BoundaryKind.SYSTEM_END)


def test_short_chat_by_hand() -> None:
    """System end, every message start, prompt end; nothing sparse where those are close to each other."""
    wanted = plan_captures(60, 0, [system(20), message(20), message(38), message(57)], None, [], 16)
    assert wanted == [
        Wanted(20, WantedKind.MESSAGE_START),
        Wanted(38, WantedKind.MESSAGE_START),
        Wanted(57, WantedKind.MESSAGE_START),
        Wanted(60, WantedKind.PROMPT_END),
    ]


def test_long_text_by_hand() -> None:
    """One message of 1,000 tokens: its start, its end, and distances from the end that double."""
    wanted = plan_captures(1000, 0, [message(10), message(996)], None, [], 16)
    assert [capture.position for capture in wanted] == [10, 488, 744, 872, 936, 996, 1000]
    assert [capture.position for capture in wanted if capture.kind is WantedKind.SPARSE] == [488, 744, 872, 936]


def test_message_starts_take_the_place_of_sparse_positions() -> None:
    """Where message starts lie about log-spaced from the end, none is added; the first gap that is too wide is filled."""
    turns = [message(1000 - distance) for distance in (50, 100, 190, 370)]
    wanted = plan_captures(1000, 0, turns, None, [], 16)
    assert [capture.position for capture in wanted if capture.kind is WantedKind.SPARSE] == [1000 - 512]


def test_branch_and_joins() -> None:
    """The branch counts only short of the prompt end, joins anywhere ahead; both only behind the start."""
    kinds = {capture.position: capture.kind for capture in plan_captures(60, 10, [], 30, [20, 5, 60], 16)}
    assert kinds == {20: WantedKind.JOIN, 30: WantedKind.BRANCH, 60: WantedKind.PROMPT_END}
    assert plan_captures(60, 30, [], 30, [], 16) == [Wanted(60, WantedKind.PROMPT_END)]
    assert plan_captures(60, 10, [], 60, [], 16) == [Wanted(60, WantedKind.PROMPT_END)]


def test_known_prompt_wants_nothing() -> None:
    """A capture at or before the start would be useless."""
    assert plan_captures(60, 60, [system(20), message(40)], 60, [60, 10], 16) == []


def test_most_valuable_first() -> None:
    """As the limit grows: prompt end, joins, branch, the last two messages, system end, earlier messages, sparse."""
    boundaries = [system(40), message(40), message(100), message(160), message(200), message(3980)]
    order: list[int] = []
    for limit in range(1, 10):
        positions = [capture.position for capture in plan_captures(4000, 0, boundaries, 3000, [2000], limit)]
        (new,) = set(positions) - set(order)
        assert set(order) <= set(positions)
        order.append(new)
    # Position 40 is both the end of the system block and a message start: it counts as the more valuable of the two.
    assert order[:6] == [4000, 2000, 3000, 3980, 200, 160]
    assert set(order[6:8]) == {100, 40}


def test_system_end_before_early_messages_and_sparse() -> None:
    """A system end of its own comes after the two latest message starts and before all others."""
    boundaries = [system(40), *[message(position) for position in range(100, 900, 100)]]
    kept = [capture.position for capture in plan_captures(900, 0, boundaries, None, [], 4)]
    assert kept == [40, 700, 800, 900]


def test_attention_only_wants_ends_and_joins() -> None:
    """A model that resumes anywhere needs a snapshot only for a hidden row."""
    wanted = plan_captures(1000, 0, [system(10), message(500)], 700, [600], 16, hybrid=False)
    assert [capture.position for capture in wanted] == [600, 1000]


@given(PROMPTS, st.integers(0, 20_000), BOUNDARIES, st.none() | st.integers(0, 21_000), POSITIONS, st.integers(0, 40))
def test_always_valid(
    prompt: int, start: int, boundaries: list[Boundary], branch: int | None, joins: list[int], limit: int
) -> None:
    """Ascending, no duplicates, ahead of the start, within the prompt and the limit; sparse never instead of something better."""
    wanted = plan_captures(prompt, min(start, prompt), boundaries, branch, joins, limit)
    positions = [capture.position for capture in wanted]
    assert positions == sorted(set(positions))
    assert all(min(start, prompt) < position <= prompt for position in positions)
    assert len(positions) <= limit
    full = plan_captures(prompt, min(start, prompt), boundaries, branch, joins, 1000)
    better = {capture.position for capture in full if capture.kind is not WantedKind.SPARSE}
    if any(capture.kind is WantedKind.SPARSE for capture in wanted):
        assert better <= set(positions)
    if limit and start < prompt:
        assert prompt in positions


@given(PROMPTS, st.integers(0, 19_999), BOUNDARIES, st.integers(1, 20_000))
def test_changed_tail_costs_at_most_twice(prompt: int, start: int, boundaries: list[Boundary], tail: int) -> None:
    """The same prompt with its last t tokens changed resumes at most max(2 t, 64) before its end."""
    start = min(start, prompt - 1)
    tail = min(tail, prompt - start)
    points = [start, *[capture.position for capture in plan_captures(prompt, start, boundaries, None, [], 1000)]]
    resume = max(position for position in points if position <= prompt - tail)
    assert prompt - resume <= max(2 * tail, 64)


@given(PROMPTS)
def test_sparse_positions_are_few(prompt: int) -> None:
    """Their number grows with the logarithm of the length: from the end backwards, not evenly from zero."""
    sparse = [capture for capture in plan_captures(prompt, 0, [], None, [], 1000) if capture.kind is WantedKind.SPARSE]
    assert 2 ** len(sparse) * 32 < max(prompt, 64)


@pytest.mark.parametrize(
    ("known", "every", "expected"), [(100, 0, None), (100, 64, 164), (163, 64, 164), (164, 64, 228), (7, 64, 164), (101, 1, 102)]
)
def test_next_generated_capture(known: int, every: int, expected: int | None) -> None:
    """Multiples of N behind a prompt of 100 tokens, strictly ahead; off at 0."""
    assert next_generated_capture(100, known, every) == expected


def evaluate(cache: SequenceCache, tokens: list[int], boundaries: list[Boundary], now: float) -> int:
    """Runs a prompt as the scheduler does, every planned capture made; returns how many tokens were evaluated."""
    resume = cache.match(tokens)
    lease = cache.open(tokens, resume, now)
    assert lease is not None
    branch = resume.matched_tokens if resume.matched_tokens > resume.position else None
    assert cache.extend(lease, len(tokens), now)
    captures = []
    for wanted in plan_captures(len(tokens), lease.start, boundaries, branch, [], 32):
        capture = cache.reserve(lease, wanted.position, now, wanted.kind)
        assert capture is not None
        captures.append(capture)
    cache.finish(cache.begin([lease], captures), now)
    cache.close(lease, len(tokens), now)
    cache.check()
    return len(tokens) - resume.position


def test_scenario_21() -> None:
    """One message of 12,000 fixed and 500 changing tokens: all, then at most twice the tail, then exactly the tail."""
    cache = SequenceCache(small_plan(pages=2000, rows=1, snapshots=64, page_tokens=32))
    fixed, closing = list(range(12_000)), [90_000, 90_001, 90_002]
    prompts = [fixed + list(range(20_000 * run, 20_000 * run + 500)) + closing for run in (1, 2, 3)]
    tail = 500 + len(closing)
    boundaries = [message(0), message(len(prompts[0]) - 2)]
    evaluated = [evaluate(cache, prompt, boundaries, float(now)) for now, prompt in enumerate(prompts)]
    assert evaluated[0] == 12_000 + tail
    assert tail <= evaluated[1] <= 2 * tail
    assert evaluated[2] == tail


def test_tool_loop_grows_linearly() -> None:
    """Scenario 14 without answers: each of 20 turns evaluates only what is new and the answer's role header."""
    cache = SequenceCache(small_plan(pages=500, rows=1, snapshots=64, page_tokens=16))
    header = [7, 8, 9]
    prompt: list[int] = list(range(100, 180))
    starts = [80]
    for turn in range(20):
        new = list(range(1000 * (turn + 1), 1000 * (turn + 1) + 50))
        starts.append(len(prompt) + 50)
        prompt = prompt + new
        evaluated = evaluate(cache, prompt + header, [system(80), *[message(start) for start in starts]], float(turn))
        assert evaluated == (50 + len(header) if turn else 80 + 50 + len(header))
