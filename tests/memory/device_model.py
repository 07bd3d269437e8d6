"""A device that only remembers: what each row of each page, each live row and each snapshot would hold, as the tokens behind it.

A K/V row depends on all tokens up to its own, a state on all tokens before its position; so both are modelled by that exact prefix.
Steps are queued and done in order; `None` is memory nobody has written. Twin of the arrays that `compute` owns, those of the host
tier included.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from svc.memory.layout import MemoryLayout
from svc.memory.lease import Lease, Reservation, ResumePoint, StepMemory
from svc.memory.placement import WantedKind
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import SequenceCache
from svc.memory.tokens import TokenArray
from tests.fakes.token_slabs import TokenSlabs

Prefix = tuple[int, ...]


class GrowingTokens:
    """A token source for the cache: the prompt, and what is said after it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: Prefix = tuple(tokens)

    @property
    def array(self) -> TokenArray:
        return np.array(self.tokens, np.int32)


def text(start: int, length: int) -> Prefix:
    """Tokens that no text with another start shares."""
    return tuple(range(start * 1000, start * 1000 + length))


def small_plan(
    *,
    pages: int = 16,
    rows: int = 3,
    snapshots: int = 6,
    page_tokens: int = 4,
    hybrid: bool = True,
    host_pages: int = 0,
    host_snapshots: int = 0,
) -> MemoryPlan:
    """A plan with these counts; the sizes of its pages and states do not matter here."""
    layout = MemoryLayout(
        hidden_size=8,
        num_attention_layers=1,
        num_kv_heads=1,
        head_dim=4,
        num_delta_layers=1 if hybrid else 0,
        num_value_heads=1,
        key_dim=4,
        value_dim=4,
        conv_channels=12,
        conv_rows=3,
        page_tokens=page_tokens,
    )
    return MemoryPlan(layout, pages, rows, snapshots, host_pages, host_snapshots)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence in a step: tokens[start:], behind all before them."""

    lease: Lease
    tokens: Prefix
    start: int


class Device(TokenSlabs):
    """The slabs of a plan, whose pages hold in each row all tokens up to its own, and the steps under way."""

    def __init__(self, plan: MemoryPlan) -> None:
        super().__init__(plan)
        self.hybrid = plan.layout.hybrid
        self.num_moves = 0  # done
        self._queue: deque[Callable[[], None]] = deque()

    # -- steps ----------------------------------------------------------------------------------------------------------------
    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def enqueue(self, step: StepMemory, chunks: Sequence[Chunk] = (), then: Callable[[], None] | None = None) -> None:
        """A step, in the order that every backend keeps: move, copy, save, set to zero or restore, forward with captures; `then`.

        What it takes from leases is read now: they may be closed before it runs.
        """
        saves = [(save.lease.row, save.place) for save in step.saves]
        captures = {(capture.lease, capture.position): capture.place for capture in step.captures}
        forwards = [
            (
                chunk.lease.row,
                chunk.lease.table.array(len(chunk.tokens)).tolist(),
                chunk.tokens,
                chunk.start,
                {position: place for (lease, position), place in captures.items() if lease is chunk.lease},
            )
            for chunk in chunks
        ]

        def work() -> None:
            assert self.num_moves == step.moves_before, (
                f"{self.num_moves} moves done before a step that follows {step.moves_before}"
            )
            for move in step.moves:
                self.move(move)
            self.num_moves += len(step.moves)
            self.prepare(step.copies, saves, step.zero_rows, step.restores)
            for forward in forwards:
                self._forward(*forward)
            if then is not None:
                then()

        self._queue.append(work)

    def run_one(self) -> None:
        """Does the oldest step that is queued."""
        self._queue.popleft()()

    def drop(self, moves: int) -> None:
        """Forgets the steps queued: they failed. `moves`: how many they and those before them were to make."""
        self._queue.clear()
        self.num_moves = moves

    def _forward(self, row: int, pages: Sequence[int], tokens: Prefix, start: int, captures: dict[int, int]) -> None:
        """Evaluates tokens[start:]; `captures`: position -> snapshot. A hybrid's row must hold the state after tokens[:start]."""
        if self.hybrid:
            assert self.rows[row] == tokens[:start], f"row {row} holds {self.rows[row]}, not the state after {tokens[:start]}"
        self.expect_known(pages, tokens[:start])
        for position in range(start, len(tokens)):
            self.write(pages, position, tokens[: position + 1])
            if position + 1 in captures:
                self.set_snapshot(captures[position + 1], tokens[: position + 1])
        self.set_row(row, tokens)

    # -- what must hold -------------------------------------------------------------------------------------------------------
    def expect_known(self, pages: Sequence[int], tokens: Prefix) -> None:
        """All rows of `tokens` are in `pages`."""
        for position, found in enumerate(self.read(pages, len(tokens))):
            assert found == tokens[: position + 1], f"position {position} holds {found}, not {tokens[: position + 1]}"


class Run:
    """One sequence on the cache and the device, driven by hand: what the scheduler does, one call at a time."""

    def __init__(self, cache: SequenceCache, device: Device, tokens: Sequence[int], now: float = 0.0) -> None:
        self.cache = cache
        self.device = device
        self.source = GrowingTokens(tokens)
        self.resume: ResumePoint = cache.match(self.tokens)
        lease = cache.open(self.source, self.resume, now)
        assert lease is not None, "no row"
        self.lease: Lease = lease
        self.written = lease.start

    @property
    def tokens(self) -> Prefix:
        return self.source.tokens

    def start(self) -> None:
        """A step that sets the row to zero or restores it, and evaluates nothing: enough to sample where all is known."""
        self._arrive()
        run_step(self.cache, self.device, [self.lease])

    def write(self, end: int, captures: Sequence[int] = (), now: float = 0.0, kind: WantedKind = WantedKind.SPARSE) -> bool:
        """Evaluates up to `end` with captures where snapshots are to be had, and publishes; False: no pages."""
        self._arrive()
        if not self.cache.extend(self.lease, end, now):
            return False
        reservations = [self.cache.reserve(self.lease, position, now, kind) for position in captures]
        taken = [reservation for reservation in reservations if reservation is not None]
        run_step(self.cache, self.device, [self.lease], [Chunk(self.lease, self.tokens[:end], self.written)], taken, now=now)
        self.written = end
        return True

    def say(self, tokens: Sequence[int]) -> None:
        """Appends tokens to evaluate later (an answer)."""
        self.source.tokens += tuple(tokens)

    def close(self, now: float = 0.0) -> None:
        self.cache.close(self.lease, self.written, now)

    def _arrive(self) -> None:
        if not self.lease.ready:
            run_step(self.cache, self.device)
        assert self.lease.ready


def run_step(
    cache: SequenceCache,
    device: Device,
    leases: Sequence[Lease] = (),
    chunks: Sequence[Chunk] = (),
    captures: Sequence[Reservation] = (),
    saves: Sequence[Reservation] = (),
    now: float = 0.0,
) -> StepMemory:
    """A whole step, on a device that has nothing else to do."""
    step = cache.begin(leases, captures, saves)
    device.enqueue(step, chunks)
    device.run_one()
    cache.finish(step, now, device.num_moves)
    return step


def converse(
    cache: SequenceCache, device: Device, tokens: Sequence[int], captures: Sequence[int] = (), now: float = 0.0
) -> ResumePoint:
    """Runs a sequence to its end, captured at its end and at `captures`, and closes it; returns where it resumed."""
    run = Run(cache, device, tokens, now)
    wanted = sorted(position for position in {*captures, len(tokens)} if position > run.written)
    if wanted:
        assert run.write(len(tokens), wanted, now), "no pages"
    run.close(now)
    return run.resume
