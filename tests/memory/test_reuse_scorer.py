"""What the score makes of work, kinds, uses and losses, on a real cache."""

import numpy as np
import pytest

from svc.memory.placement import WantedKind
from svc.memory.prefix_digest import PrefixDigests
from svc.memory.reuse import REFRESHED_EVERY, Past, class_of
from svc.memory.reuse_scorer import ReuseScorer
from svc.memory.scoring import Work
from svc.memory.sequence_cache import SequenceCache
from tests.memory.device_model import Device, Run, converse, small_plan, text

WORK = Work(32_768.0)


class Scored:
    """A cache whose scorer can be looked at."""

    def __init__(self, *, pages: int = 64, snapshots: int = 8) -> None:
        plan = small_plan(pages=pages, rows=2, snapshots=snapshots)
        self.scorer = ReuseScorer(snapshots, WORK)
        self.cache, self.device = SequenceCache(plan, self.scorer), Device(plan)

    def write(self, tokens: tuple[int, ...], kind: WantedKind, now: float) -> int:
        """Evaluates a text with one capture at its end; where it resumed."""
        run = Run(self.cache, self.device, tokens, now)
        if run.written < len(tokens):
            assert run.write(len(tokens), [len(tokens)], now, kind)
        else:
            run.start()
        run.close(now)
        return run.resume.position

    def score(self, tokens: tuple[int, ...], now: float) -> float:
        ref = self.cache.match(tokens).snapshot
        assert ref is not None
        node = self.cache._tree.node_of_snapshot(ref.snapshot_id)
        return self.scorer.snapshot(node, self.cache._tree.shallower_snapshot(node), now)

    def capture(self, position: int, shallower: int, kind: WantedKind) -> float:
        score = self.scorer.capture(np.zeros(0, np.int32), position, shallower, kind, 0.0)
        assert score is not None
        return score


def test_work_by_hand() -> None:
    """Half as much again at even_tokens, in any parts."""
    assert Work(1000.0).between(0, 1000) == 1500
    assert Work(1000.0).between(0, 600) + Work(1000.0).between(600, 1000) == pytest.approx(1500)
    assert Work(float("inf")).between(7, 1000) == 993


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((200, 100, WantedKind.SPARSE), (150, 100, WantedKind.SPARSE)),  # more tokens
        ((100_100, 100_000, WantedKind.SPARSE), (200, 100, WantedKind.SPARSE)),  # deeper in a text
        ((200, 100, WantedKind.ANSWER_END), (200, 100, WantedKind.PROMPT_END)),
        ((200, 100, WantedKind.PROMPT_END), (200, 100, WantedKind.SPARSE)),
        ((200, 100, WantedKind.SYSTEM_END), (200, 100, WantedKind.MESSAGE_START)),
        ((1000, 0, WantedKind.SPARSE), (20, 0, WantedKind.ANSWER_END)),  # much work that is hardly wanted, and little that is
    ],
)
def test_captures_in_order(better: tuple[int, int, WantedKind], worse: tuple[int, int, WantedKind]) -> None:
    scored = Scored()
    assert scored.capture(*better) > scored.capture(*worse) > 0


def test_score_falls_with_age_and_use_makes_it_fresh() -> None:
    scored = Scored()
    scored.write(text(1, 12), WantedKind.SYSTEM_END, 0.0)
    fresh, old = scored.score(text(1, 12), 0.0), scored.score(text(1, 12), 500.0)
    assert old < fresh / 5
    assert scored.write(text(1, 12), WantedKind.PROMPT_END, 500.0) == 12
    assert scored.score(text(1, 12), 500.0) > fresh  # a system prompt that was used is likely to be used again


def test_learned_counts_move_the_score() -> None:
    """Cancelled prompts that come back all the time outscore answers of which none goes on, against the priors."""
    scored = Scored(snapshots=32, pages=400)
    before = scored.capture(200, 100, WantedKind.SPARSE) / scored.capture(200, 100, WantedKind.ANSWER_END)
    for number in range(1, REFRESHED_EVERY + 1):
        now = 100.0 * number
        scored.write(text(number, 12), WantedKind.SPARSE, now)
        scored.write(text(number, 12) + text(900 + number, 4), WantedKind.ANSWER_END, now + 5.0)
    after = scored.capture(200, 100, WantedKind.SPARSE) / scored.capture(200, 100, WantedKind.ANSWER_END)
    assert after > 3 * before


def test_what_was_passed_is_worth_less() -> None:
    """The next turn has resumed at an answer's end: the prompt's end above it is not likely to be asked for again."""
    scored = Scored()
    prompt, answer = text(1, 8), text(1, 8) + text(2, 8)
    scored.write(prompt, WantedKind.PROMPT_END, 0.0)
    scored.write(answer, WantedKind.ANSWER_END, 1.0)
    before = scored.score(prompt, 20.0)
    assert scored.write(answer + text(3, 8), WantedKind.ANSWER_END, 20.0) == len(answer)
    assert scored.score(prompt, 20.0) < before


def test_an_answer_that_was_stopped_makes_its_prompt_wanted() -> None:
    scored = Scored()
    for number, kind in ((1, WantedKind.CANCELLED), (2, WantedKind.ANSWER_END)):
        run = Run(scored.cache, scored.device, text(number, 12) + text(10 + number, 4), 0.0)
        assert run.write(12, [12], 0.0, WantedKind.PROMPT_END)
        assert run.write(16, [16], 0.0, kind)
        run.close()
    scores = [scored.score(text(number, 12), 50.0) for number in (1, 2)]
    assert scores[0] > scores[1]


def test_lost_text_that_is_asked_for_again_counts() -> None:
    """It is gone, and still teaches that its kind is wanted; once it is kept again it is known as used."""
    scored = Scored(snapshots=2)
    scored.write(text(1, 12), WantedKind.SYSTEM_END, 0.0)
    scored.write(text(2, 40), WantedKind.SYSTEM_END, 10.0)
    scored.write(text(3, 40), WantedKind.SYSTEM_END, 20.0)
    assert scored.cache.match(text(1, 20)).position == 0
    assert scored.write(text(1, 12), WantedKind.JOIN, 30.0) == 0
    new = class_of(WantedKind.SYSTEM_END)
    assert scored.scorer.statistics._uses[new].sum() == 1
    assert scored.scorer.statistics._uses.sum() == 1
    ref = scored.cache.match(text(1, 12)).snapshot
    assert ref is not None
    assert scored.scorer._entries[ref.snapshot_id].reuse_class == class_of(WantedKind.JOIN, Past.USED)


def test_the_rest_of_a_conversation_inherits_what_its_end_was_worth() -> None:
    """When the answer's end goes for lack of pages, the prompt's end, older and less wanted, is where the next turn resumes now."""
    scored = Scored(pages=10)
    prompt, whole = text(1, 12), text(1, 12) + text(2, 12)
    scored.write(prompt, WantedKind.SPARSE, 0.0)
    scored.write(whole, WantedKind.ANSWER_END, 100.0)
    before = scored.score(prompt, 100.0)
    filler = Run(scored.cache, scored.device, text(3, 24), 100.0)
    assert filler.write(24, now=100.0)
    assert scored.cache.match(whole).position == len(prompt)
    assert scored.score(prompt, 100.0) > 2 * before
    filler.close()
    scored.cache.check()


def test_a_cycle_that_does_not_fit_keeps_a_part() -> None:
    """Ten texts in turn, with pages for six: LRU would find none of them in any round, as each goes before its turn comes."""
    scored = Scored(pages=30, snapshots=40)
    found = 0
    for number in range(200):
        tokens = text(1 + number % 10, 20)
        run = Run(scored.cache, scored.device, tokens, 6.0 * number)
        found += run.written if number >= 100 else 0
        if run.written < 20:
            assert run.write(20, [20], 6.0 * number, WantedKind.PROMPT_END)
        run.close(6.0 * number)
    assert found >= 20 * 100 * 0.15


def test_wrong_states_leave_no_trace() -> None:
    """What is cleared is not remembered as lost: nobody could have used it."""
    scored = Scored()
    scored.write(text(1, 12), WantedKind.SYSTEM_END, 0.0)
    scored.cache.clear()
    scored.write(text(1, 12), WantedKind.SYSTEM_END, 1.0)
    assert not scored.scorer.statistics._uses.any()
    assert len(scored.scorer._entries) == 1


def test_digests_go_on_from_a_prefix() -> None:
    """The same from the beginning or from any point on, different for texts that differ anywhere, also by order."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 150_000, 257, np.int32)
    digests = PrefixDigests()
    whole = digests.of(tokens)
    for start in (1, 63, 256):
        assert (digests.of(tokens, start, int(whole[start - 1])) == whole[start:]).all()
    swapped = tokens[[1, 0, *range(2, 257)]]
    assert digests.of(swapped)[0] != whole[0]
    assert digests.of(swapped)[-1] != whole[-1]
    assert digests.of(np.zeros(3, np.int32))[2] != digests.of(np.zeros(2, np.int32))[1]


def test_long_conversation_is_told_of_a_pass_near_its_end_only(device: Device) -> None:
    """Resuming behind hundreds of snapshots tells 16 of them: the cost of a request does not grow with its history."""
    scored = Scored(pages=400, snapshots=300)
    converse(scored.cache, scored.device, text(1, 600), captures=list(range(4, 600, 4)))
    converse(scored.cache, scored.device, text(1, 600) + text(2, 4), now=1.0)
    passed = [entry for entry in scored.scorer._entries.values() if entry.reuse_class % len(Past) == Past.PASSED]
    assert len(passed) == 16
