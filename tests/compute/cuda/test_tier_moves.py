"""The side stream on a device that does nothing until the host waits: each event is needed, and a test fails without it.

`planted` takes one wait away and must give wrong bytes; the same steps with all of them give the right ones.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from svc.compute.backend import PageCopy, StepBatch
from svc.compute.cuda.caches import CudaCaches
from svc.compute.cuda.device import Device
from svc.compute.cuda.ops import CudaOps
from svc.compute.cuda.tier_moves import TierMoves
from svc.compute.model_file import open_model
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.compute.tier_moves import Places, Run, places_moved, places_written, runs
from svc.memory.layout import MemoryLayout
from svc.memory.plan import MemoryPlan
from svc.memory.tiers import Move, MoveKind
from svc.model.arch import load_model
from svc.slots.events import FinishReason, TokenEvent
from tests.compute.rig import GGUF
from tests.cuda_emulator.build import have_compiler
from tests.cuda_emulator.device import EmulatedDevice, EmulatedEvent, EmulatedStream
from tests.slots.harness import Answer, Driver

OUT, IN, SNAPSHOT, ROW = MoveKind.PAGE_OUT, MoveKind.PAGE_IN, MoveKind.SNAPSHOT_OUT, MoveKind.ROW_IN
LOGPROBS = SamplingParams(temperature=0, num_logprobs=2)
PLAN = MemoryPlan(MemoryLayout(8, 1, 1, 16, 1, 1, 4, 4, 12, 3, 16, "f32"), 6, 2, 3, num_host_pages=8, num_host_snapshots=4)


class DeafEvent(EmulatedEvent):
    """An event without effect."""

    def wait(self, stream: EmulatedStream | None = None) -> None:
        pass


class SideDoesNotWait(TierMoves):
    """The moves do not wait for what the main stream has written."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._written = DeafEvent(device)


class MainDoesNotWait(TierMoves):
    """The main stream writes where moves still read or write."""

    def _guard(self, written: Places) -> None:
        pass


class HostDoesNotWait(TierMoves):
    """Moves are called over when they have been queued."""

    def over(self, *, all_of_them: bool) -> int:
        return self._pending[-1].last if self._pending else self._over


class MoveRig:
    """Caches whose pages are filled by the main stream, one number a page, and the side stream's moves."""

    def __init__(self, tier_moves: type[TierMoves], *, lazy: bool = True) -> None:
        self.device = EmulatedDevice(lazy=lazy)
        self.caches = CudaCaches(cast(Device, self.device), PLAN)
        self.tier_moves = tier_moves(cast(Device, self.device))
        self.before = 0

    def write(self, page: int, value: float) -> None:
        """By a step: on the main stream."""
        self.step(StepBatch(copies=[PageCopy(page, page)]), page, value)

    def step(self, batch: StepBatch, page: int | None = None, value: float = 0.0) -> None:
        batch = StepBatch(moves=batch.moves, moves_before=self.before, copies=batch.copies)
        self.before += len(batch.moves)
        self.tier_moves.begin(self.caches, batch)
        if page is not None:
            target = self.caches.kv[page : page + 1]
            self.device.copy_in(target, np.full(target.shape, value, np.float32))

    def page(self, page: int) -> float:
        return float(self.device.to_host(self.caches.kv[page : page + 1]).mean())


def stored_after_it_was_written(rig: MoveRig) -> float:
    """A page written by the step before goes out at once and comes back elsewhere."""
    rig.write(0, 5.0)
    rig.step(StepBatch(moves=[Move(OUT, 0, 3), Move(IN, 3, 1)]))
    rig.tier_moves.over(all_of_them=True)
    return rig.page(1)


def overwritten_after_it_was_stored(rig: MoveRig) -> float:
    """The place of a page on its way out is written by the very step that asked for the move."""
    rig.write(0, 5.0)
    rig.device.synchronize()
    rig.step(StepBatch(moves=[Move(OUT, 0, 3)], copies=[PageCopy(4, 0)]), 0, 7.0)
    assert rig.page(0) == 7.0
    rig.step(StepBatch(moves=[Move(IN, 3, 1)]))
    rig.device.synchronize()
    return rig.page(1)


def given_away_while_it_came(rig: MoveRig) -> float:
    """A page's place is given to another sequence before the move into it is over: what that one writes stays."""
    rig.write(0, 7.0)
    rig.step(StepBatch(moves=[Move(OUT, 0, 3)]))
    rig.device.synchronize()
    rig.step(StepBatch(moves=[Move(IN, 3, 1)]))
    rig.write(1, 5.0)
    rig.page(1)
    rig.device.synchronize()
    return rig.page(1)


def read_when_it_is_over(rig: MoveRig) -> float:
    """A page that came from the host is read by the step after the moves are said to be over."""
    rig.write(0, 5.0)
    rig.step(StepBatch(moves=[Move(OUT, 0, 3)]))
    rig.device.synchronize()
    rig.step(StepBatch(moves=[Move(IN, 3, 1)]))
    assert rig.tier_moves.over(all_of_them=True) == rig.before
    return rig.page(1)


STORIES = [
    (stored_after_it_was_written, SideDoesNotWait),
    (overwritten_after_it_was_stored, MainDoesNotWait),
    (given_away_while_it_came, MainDoesNotWait),
    (read_when_it_is_over, HostDoesNotWait),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("story", "_planted"), STORIES)
def test_order_of_moves_and_steps(story: Callable[[MoveRig], float], _planted: object, lazy: bool) -> None:
    assert story(MoveRig(TierMoves, lazy=lazy)) == 5.0


@pytest.mark.parametrize(("story", "planted"), STORIES)
def test_each_event_is_needed(story: Callable[[MoveRig], float], planted: type[TierMoves]) -> None:
    assert story(MoveRig(planted)) != 5.0


def test_moves_are_over_when_their_event_is_done() -> None:
    """Not when they are queued, not all at once; waiting for all waits for the last."""
    rig = MoveRig(TierMoves)
    rig.step(StepBatch(moves=[Move(SNAPSHOT, 0, 0), Move(SNAPSHOT, 1, 1)]))
    rig.step(StepBatch(moves=[Move(ROW, 1, 0)]))
    assert rig.tier_moves.over(all_of_them=False) == 0
    first = rig.tier_moves._pending[0]
    first.done.synchronize()
    assert rig.tier_moves.over(all_of_them=False) == 2
    assert rig.tier_moves.over(all_of_them=True) == 3
    rig.step(StepBatch(moves=[Move(ROW, 0, 1)]))
    assert rig.tier_moves.over(all_of_them=False) == 3


def test_a_step_that_disturbs_nothing_waits_for_nothing() -> None:
    """Steps go on beside moves; the first one that writes a place of theirs waits."""
    rig = MoveRig(TierMoves)
    side = cast(EmulatedStream, rig.tier_moves._side)
    rig.step(StepBatch(moves=[Move(OUT, 0, 3), Move(IN, 5, 1)]))
    rig.write(2, 1.0)
    assert rig.page(2) == 1.0
    assert side.finished == 0
    rig.write(1, 1.0)
    assert rig.page(1) == 1.0
    assert side.finished == side.queued


def test_neighbours_are_one_copy() -> None:
    """Runs in both directions; what only one slab has side by side is not joined."""
    moves = [
        Move(OUT, 1, 4),
        Move(OUT, 2, 5),
        Move(OUT, 3, 6),
        Move(IN, 6, 9),
        Move(IN, 5, 8),
        Move(IN, 4, 8),
        Move(SNAPSHOT, 4, 8),
    ]
    assert list(runs(moves)) == [Run(OUT, 1, 4, 3), Run(IN, 5, 8, 2), Run(IN, 4, 8, 1), Run(SNAPSHOT, 4, 8, 1)]
    assert list(runs([])) == []
    places = places_moved(moves)
    assert (places.pages, places.rows, places.snapshots) == ({1, 2, 3, 9, 8}, set(), {4})
    assert places_written(StepBatch(zero_rows=[3]), 16).rows == {3}


# -- a whole model ----------------------------------------------------------------------------------------------------------------


class TierMoveOps(CudaOps):
    """Float activations do not matter here: the compared results come from the same batches."""

    def __init__(self, device: Device, tier_moves: type[TierMoves]) -> None:
        super().__init__(device)
        self._tier_moves = tier_moves(device)


Fresh = Callable[..., Driver]


@pytest.fixture(scope="module")
def device() -> Device:
    return cast(Device, EmulatedDevice(lazy=True))


@pytest.fixture
def fresh(device: Device) -> Iterator[Fresh]:
    runners: list[ModelRunner] = []

    def make(
        *, tier_moves: type[TierMoves] = TierMoves, pages: int = 30, snapshots: int = 16, host: tuple[int, int] = (0, 0)
    ) -> Driver:
        ops = TierMoveOps(device, tier_moves)
        config, source = open_model(GGUF / "tiny-qwen3next-Q4_K_M.gguf")
        plan = MemoryPlan(config.memory_layout(16, "f16"), pages, 2, snapshots, *host)
        ticks = itertools.count()  # how a prompt is cut depends on the time that steps take, and rounding on how it is cut
        runners.append(ModelRunner(load_model(source, config, ops), ops, plan, 64, lambda: 1e-9 * next(ticks)))  # type: ignore[arg-type]
        return Driver(runners[-1])

    yield make
    for runner in runners:
        runner.close()


def talk(driver: Driver, turns: int = 2) -> list[Answer]:
    """Two conversations in turn."""
    said = [random.Random(seed).choices(range(10, 2000), k=40) for seed in (1, 2)]
    answers = []
    for turn in range(turns):
        for talker in (0, 1):
            answers.append(driver.ask(said[talker], 3, params=LOGPROBS))
            said[talker] = [*said[talker], *answers[-1].tokens, *random.Random(10 * turn + talker).choices(range(10, 2000), k=9)]
    return answers


def bits(answer: Answer) -> list[tuple[int, float]]:
    return [(event.token, event.logprob) for event in answer.events if isinstance(event, TokenEvent)]


@pytest.mark.skipif(not have_compiler(), reason="the CUDA emulator needs g++")
def test_two_conversations_that_do_not_fit_on_the_device(fresh: Fresh) -> None:
    """Each finds its memory again, as if both fitted on the device: the same reuse, the same bits. Where the main stream does not
    wait, something is lost. (The other waits are needed where a step begins before the last one has ended.)"""
    control = talk(fresh())
    small: dict[str, Any] = {"pages": 5, "snapshots": 2, "host": (20, 8)}
    driver = fresh(**small)
    answers = talk(driver)
    assert [answer.cached for answer in answers] == [answer.cached for answer in control] == [0, 0, 42, 42]
    assert [bits(answer) for answer in answers] == [bits(answer) for answer in control]
    assert driver.cache.stats().counters.num_host_resumes == 2
    driver.assert_nothing_leaked()
    broken = talk(fresh(**small, tier_moves=MainDoesNotWait))
    failed = any(answer.end.reason is FinishReason.ERROR for answer in broken)
    assert failed or [bits(answer) for answer in broken] != [bits(answer) for answer in control]
