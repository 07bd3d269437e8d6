"""A token's bits do not depend on what it is computed with: batch, order, cuts, captures, threads, level of the instruction set.

The expected bits are those of plain C on one thread, each text alone and whole; kernels/ holds that to float64.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc.compute.cpu import CpuOps
from svc.compute.cpu.ops import Activations
from tests.compute.cpu.conftest import MakeOps, make_and_close
from tests.compute.cpu.layer_rig import Outcome, Step, run

ACTIVATIONS: list[Activations] = ["float", "int8"]
KINDS = ["delta", "attention", "dense", "moe"]
LENGTHS = [1, 70, 17, 34]
CAPTURES = [(1, 1), (1, 37), (1, 70), (3, 2), (2, 17), (3, 33)]


def alone(lengths: Sequence[int]) -> list[Step]:
    return [[(number, length)] for number, length in enumerate(lengths)]


def token_by_token(lengths: Sequence[int]) -> list[Step]:
    """All texts that are not at their end, one token each, in falling order."""
    return [[(t, 1) for t in reversed(range(len(lengths))) if position < lengths[t]] for position in range(max(lengths))]


SCHEDULES: dict[str, list[Step]] = {
    "alone": alone(LENGTHS),
    "token by token": token_by_token(LENGTHS),
    "together": [[(2, 17), (0, 1), (3, 34), (1, 70)]],
    "decode beside prefill": [[(1, 5)], [(1, 1), (3, 33), (0, 1)], [(1, 2), (3, 1), (2, 16)], [(2, 1), (1, 62)]],
}


def assert_same_bits(got: list[Outcome], expected: list[Outcome], what: str) -> None:
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for name in ("hidden", "row", "pages", "snapshots"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert a.tobytes() == b.tobytes(), f"{what}: {name} of text {number} differs in {np.sum(a != b)} of {a.size} places"


@pytest.fixture(params=ACTIVATIONS)
def make_both_ops(request: pytest.FixtureRequest) -> Iterator[MakeOps]:
    yield from make_and_close(request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_bits_on_every_level_thread_count_and_schedule(make_both_ops: MakeOps, level: str, threads: int, kind: str) -> None:
    expected = run(make_both_ops(1, "base"), kind, LENGTHS, alone(LENGTHS), CAPTURES)
    assert all(np.isfinite(outcome.hidden).all() for outcome in expected)
    ops = make_both_ops(threads, level)
    for name, steps in SCHEDULES.items():
        assert_same_bits(run(ops, kind, LENGTHS, steps, CAPTURES), expected, name)


@pytest.fixture(scope="module", params=ACTIVATIONS)
def best(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(3, activations=request.param, poison=True, least_shared_work=0)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[Step]]:
    """Up to four texts in random cuts, random company and random order."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    left, steps = list(lengths), []
    while any(left):
        waiting = draw(st.permutations([t for t, n in enumerate(left) if n]))
        step = [(t, draw(st.integers(1, left[t]))) for t in waiting[: draw(st.integers(1, len(waiting)))]]
        for t, n in step:
            left[t] -= n
        steps.append(step)
    return lengths, steps


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_same_bits_in_random_schedules(best: CpuOps, kind: str, data: st.DataObject) -> None:
    lengths, steps = data.draw(schedules())
    captures = [(t, data.draw(st.integers(1, n))) for t, n in enumerate(lengths)]
    assert_same_bits(run(best, kind, lengths, steps, captures), run(best, kind, lengths, alone(lengths), captures), str(steps))


def test_attention_over_several_segments(make_ops: MakeOps, level: str) -> None:
    """Longer than a segment of 512 positions: segments as separate tasks (one token, many threads) or in one (a long piece)."""
    length = 700
    expected = run(make_ops(1, level), "attention", [length], [[(0, length)]])
    for threads in (1, 4):
        ops = make_ops(threads, level)
        cut = run(ops, "attention", [length], [[(0, 511)], [(0, 1)], [(0, 1)], [(0, 2)], [(0, 180)], *[[(0, 1)]] * 5])
        assert_same_bits(cut, expected, f"{threads} threads")


def test_several_segments_on_every_level(make_ops: MakeOps, level: str) -> None:
    steps: list[Step] = [[(0, 530)], [(0, 1)]]
    expected = run(make_ops(1, "base"), "attention", [531], steps)
    assert_same_bits(run(make_ops(2, level), "attention", [531], steps), expected, level)


@pytest.mark.parametrize("most_partial_bytes", [0, 4096, 1 << 20])
def test_segments_a_few_at_a_time(make_ops: MakeOps, level: str, most_partial_bytes: int) -> None:
    """However little memory there is for the segments under way: one at a time, two (of two tokens) and one, or all three."""
    length = 1100
    expected = run(make_ops(1, level), "attention", [length, 20], [[(0, length)], [(1, 20)]])
    ops = CpuOps(6, level=level, poison=True, least_shared_work=0, most_partial_bytes=most_partial_bytes)
    steps: list[Step] = [[(0, 1022), (1, 19)], [(0, 1)], [(0, 1), (1, 1)], [(0, 2)], [(0, 40)], *[[(0, 2)]] * 17]
    cut = run(ops, "attention", [length, 20], steps)
    ops.close()
    assert_same_bits(cut, expected, f"{most_partial_bytes} bytes")
