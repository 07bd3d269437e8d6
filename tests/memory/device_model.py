"""A device that only remembers: what each row of each page, each live row and each snapshot would hold, as the tokens behind it.

A K/V row depends on all tokens up to its own, a state on all tokens before its position; so both are modelled by that exact prefix.
Work is queued and done in order, as steps are; `None` is memory nobody has written. Twin of the arrays that `compute` owns, those
of the host tier included.
"""

from collections.abc import Callable, Sequence

from svc.memory.layout import MemoryLayout
from svc.memory.moves import Move
from svc.memory.plan import MemoryPlan
from svc.memory.sequence_cache import Lease, ResumePoint, SequenceCache, SnapshotRef
from tests.fakes.moves import make_move

Prefix = tuple[int, ...]


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
    """Counts of one's choice; the sizes behind them do not matter here."""
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


class Device:
    """The slabs of a plan, and the steps under way."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.hybrid = plan.layout.hybrid
        self.page_tokens = plan.layout.page_tokens
        self.pages: list[list[Prefix | None]] = [[None] * self.page_tokens for _ in range(plan.num_pages)]
        self.rows: list[Prefix | None] = [None] * plan.num_rows
        self.snapshots: list[Prefix | None] = [None] * plan.num_snapshots
        self.host_pages: list[list[Prefix | None]] = [[None] * self.page_tokens for _ in range(plan.num_host_pages)]
        self.host_snapshots: list[Prefix | None] = [None] * plan.num_host_snapshots
        self._queue: list[Callable[[], None]] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def run(self) -> None:
        """Does all that is queued."""
        queue, self._queue = self._queue, []
        for work in queue:
            work()

    def move(self, moves: Sequence[Move]) -> None:
        """Between the tiers, in order."""

        def work() -> None:
            for move in moves:
                make_move(self, move)

        self.enqueue(work)

    def copy_page(self, source: int, target: int) -> None:
        self.enqueue(lambda: self.pages[target].__setitem__(slice(None), list(self.pages[source])))

    def start_row(self, row: int, snapshot_id: int | None) -> None:
        self.enqueue(lambda: self.rows.__setitem__(row, () if snapshot_id is None else self.snapshots[snapshot_id]))

    def save(self, row: int, snapshot_id: int) -> None:
        self.enqueue(lambda: self.snapshots.__setitem__(snapshot_id, self.rows[row]))

    def forward(self, row: int, pages: Sequence[int], tokens: Prefix, start: int, captures: dict[int, int]) -> None:
        """Evaluates tokens[start:]; `captures`: position -> snapshot. A hybrid's row must hold the state after tokens[:start]."""

        def work() -> None:
            if self.hybrid:
                assert self.rows[row] == tokens[:start], f"row {row} holds {self.rows[row]}, not the state after {tokens[:start]}"
            for position in range(start):
                self._expect_row(pages, tokens, position)
            for position in range(start, len(tokens)):
                self.pages[pages[position // self.page_tokens]][position % self.page_tokens] = tokens[: position + 1]
                if position + 1 in captures:
                    self.snapshots[captures[position + 1]] = tokens[: position + 1]
            self.rows[row] = tokens

        self.enqueue(work)

    def expect_known(self, pages: Sequence[int], tokens: Prefix) -> None:
        """All rows of `tokens` stand in `pages`."""
        for position in range(len(tokens)):
            self._expect_row(pages, tokens, position)

    def _expect_row(self, pages: Sequence[int], tokens: Prefix, position: int) -> None:
        page, offset = pages[position // self.page_tokens], position % self.page_tokens
        found = self.pages[page][offset]
        assert found == tokens[: position + 1], f"row {offset} of page {page} holds {found}, not {tokens[: position + 1]}"


class Run:
    """One sequence on the cache and the device, driven by hand: what the scheduler does, one call at a time."""

    def __init__(self, cache: SequenceCache, device: Device, tokens: Sequence[int], now: float = 0.0) -> None:
        self.cache = cache
        self.device = device
        self.tokens: Prefix = tuple(tokens)
        self.resume: ResumePoint = cache.match(self.tokens, now)
        lease = cache.open(self.tokens, self.resume, now)
        assert lease is not None, "no slot"
        self.lease: Lease = lease
        self.written = lease.start
        make_moves(cache, device)
        assert cache.ready(lease)
        if not lease.row_comes:
            self.device.start_row(lease.row, cache.start_snapshot(lease))

    def write(self, end: int, captures: Sequence[int] = (), now: float = 0.0) -> bool:
        """Evaluates up to `end` with captures where snapshots are to be had, runs the device and publishes; False: no pages."""
        if not self.cache.extend(self.lease, end, now):
            return False
        copies = self.cache.take_copies(self.lease)
        refs: dict[int, SnapshotRef] = {}
        for position in captures:
            ref = self.cache.reserve(self.lease, self.tokens, position, now)
            if ref is not None:
                refs[position] = ref
        make_moves(self.cache, self.device)
        for source, target in copies:
            self.device.copy_page(source, target)
        pages = self.lease.table.array(end).tolist()
        snapshots = {position: self.cache.device_snapshot(ref) for position, ref in refs.items()}
        self.device.forward(self.lease.row, pages, self.tokens[:end], self.written, snapshots)
        self.device.run()
        self.cache.started(self.lease)
        self.written = end
        for ref in refs.values():
            self.cache.publish(ref, self.tokens, self.lease, now)
        return True

    def say(self, tokens: Sequence[int]) -> None:
        """Appends tokens to evaluate later (an answer)."""
        self.tokens += tuple(tokens)

    def close(self, now: float = 0.0) -> None:
        self.cache.close(self.lease, self.tokens, self.written, now)


def make_moves(cache: SequenceCache, device: Device) -> None:
    """All that wait, on a device that has done everything queued before."""
    before, moves = cache.take_moves()
    device.move(moves)
    device.run()
    cache.moves_over(before + len(moves))


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
