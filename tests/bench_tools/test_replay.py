"""The replay of traces: traces are what they say, policies differ as they should, and the bars that hold in small are kept."""

import numpy as np
import pytest

from svc.memory.placement import BoundaryKind
from tests.bench.replay.__main__ import CLAIRVOYANT, LRU, OURS, Row, markdown, missed, rows
from tests.bench.replay.device import Replay, ample
from tests.bench.replay.traces import END, START, TRACES, Ask, Chat, Size, common, least_tokens, make

SMALL = Size(clients=0.4, text=0.5)


def ask(at_s: float, tokens: list[int], answer: list[int], leaves_at: int | None = None) -> Ask:
    return Ask(at_s, np.array(tokens, np.int32), (), np.array(answer, np.int32), leaves_at)


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_deterministic(name: str) -> None:
    """The same requests each time, in order, each at a message's end and ready for an answer; other seeds ask other things."""
    one, two, other = (make(TRACES[name], seed, SMALL) for seed in (1, 1, 2))
    assert [a.prompt.tolist() for a in one] == [a.prompt.tolist() for a in two]
    assert [a.prompt.tolist() for a in one] != [a.prompt.tolist() for a in other]
    assert [a.at_s for a in one] == sorted(a.at_s for a in one)
    for each in one:
        assert all(each.prompt[b.position] == START for b in each.boundaries if b.kind is BoundaryKind.MESSAGE_START)
        assert each.answer[-1] == END
        assert all(0 < b.position < len(each.prompt) for b in each.boundaries)


def test_chat_by_hand() -> None:
    chat = Chat().say(3, [200, 201]).say(4, [300])
    first = chat.ask(1.0, [400, 401])
    assert first.prompt.tolist() == [0, 3, 2, 200, 201, 1, 2, 0, 4, 2, 300, 1, 2, 0, 5, 2]
    assert [(b.position, b.kind.value) for b in first.boundaries] == [
        (7, "system_end"),
        (7, "message_start"),
        (13, "message_start"),
    ]
    assert first.evaluated.tolist() == [*first.prompt.tolist(), 400, 401]
    following = chat.say(5, [400, 401]).say(4, [301]).ask(2.0, [402])
    assert common(following.prompt, first.evaluated) == len(first.evaluated)


def test_least_tokens_by_hand() -> None:
    """Behind the longest prefix evaluated before, answers but for their last token included; a retry goes on where one left."""
    assert least_tokens([ask(0, [1, 2, 3], [4, 5, 6])]) == 3
    assert least_tokens([ask(0, [1, 2, 3], [4, 5, 6]), ask(1, [1, 2, 3, 4, 5, 6, 7], [8])]) == 3 + 2
    assert least_tokens([ask(0, [1, 2, 3], [4]), ask(1, [1, 2, 3], [4]), ask(2, [1, 2, 9], [4])]) == 3 + 0 + 1
    assert least_tokens([ask(0, [1, 2, 3, 4, 5], [4], leaves_at=2), ask(1, [1, 2, 3, 4, 5], [4])]) == 2 + 3


@pytest.mark.parametrize("name", TRACES)
def test_enough_memory_is_perfect(name: str) -> None:
    """Nothing is evaluated twice, but for role headers behind a message's start and tails that no capture was near."""
    trace = make(TRACES[name], 5, SMALL)
    done = Replay(trace, *ample(trace)).run()
    assert least_tokens(trace) <= done.evaluated <= 1.03 * least_tokens(trace)
    assert done.preemptions == 0


@pytest.mark.parametrize("name", ["chats with edits", "tool loops", "twelve in turn", "four agents", "cancel and retry"])
def test_an_eighth_of_the_snapshots_is_enough(name: str) -> None:
    """The bar for a quarter is 1.3; where the ends of conversations are what is asked for, half as many do."""
    for row in rows(name, 7, Size(clients=0.4, text=0.4), (OURS, LRU), (8,)):
        if row.short_of == "snapshots":
            assert row.ratio(OURS) <= 1.3
            assert row.evaluated[OURS] <= row.evaluated[LRU]


def test_a_cycle_larger_than_memory_keeps_a_part() -> None:
    """With pages for half of twelve conversations in turn: LRU evaluates almost everything each time, nobody else does."""
    row = next(row for row in rows("twelve in turn", 7, Size(text=0.3), (OURS, LRU, CLAIRVOYANT), (2,)) if row.short_of == "pages")
    assert row.evaluated[LRU] > 1.8 * row.evaluated[CLAIRVOYANT]
    assert row.evaluated[OURS] < 1.5 * row.evaluated[CLAIRVOYANT]


def test_missed_bars_are_said() -> None:
    """One sentence for each; a table with a line for each budget."""
    counts = {OURS: 200, LRU: 180, "FIFO, spaced": 300, CLAIRVOYANT: 110}
    row = Row("mixed day", "pages", 4, 10, 20, 1000, 100, 100, counts)
    assert missed([row]) == ["mixed day, pages 1/4: 1.82 of the clairvoyant, not 1.5", "mixed day, pages 1/4: 1.111 of LRU"]
    assert missed([Row("mixed day", "snapshots", 8, 10, 20, 1000, 100, 100, {**counts, LRU: 200})]) == []
    assert markdown([row]).splitlines()[-1].endswith("| pages | 1/4 | 2.00 | 1.80 | 3.00 | 1.10 |")
