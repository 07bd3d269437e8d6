"""Random operations on the memory, against a device that remembers which tokens stand behind every row, page row and snapshot."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from svc.memory.prefix_tree import token_array
from svc.memory.sequence_cache import COLD, Lease, ResumePoint, SequenceCache, SnapshotRef, StaleSnapshotError
from tests.memory.device_model import Device, Prefix, small_plan

CONTEXT = 40
TAILS = st.lists(st.integers(0, 1), max_size=24)


@dataclass(eq=False)
class Live:
    """A seated sequence as the scheduler would know it."""

    lease: Lease
    tokens: Prefix
    position: int  # planned: the device may be behind
    saves: list[SnapshotRef] = field(default_factory=list)  # planned captures, written once the device has run
    started: bool = False


class MemoryMachine(RuleBasedStateMachine):
    """Everything that can be matched holds exactly the tokens matched, whatever came before, and nothing is ever lost.

    Steps are queued on the device and run later, so that sequences close, pages change hands and captures are abandoned while
    work on them is still under way, as with a step in flight.
    """

    hybrid = True
    host_tier = False

    @initialize(
        pages=st.integers(12, 24),
        rows=st.integers(1, 4),
        snapshots=st.integers(1, 8),
        size=st.sampled_from([1, 3, 4, 8]),
        host=st.tuples(st.integers(0, 40), st.integers(0, 8)),
    )
    def build(self, pages: int, rows: int, snapshots: int, size: int, host: tuple[int, int]) -> None:
        host_pages, host_snapshots = host if self.host_tier else (0, 0)
        plan = small_plan(
            pages=max(pages, -(-CONTEXT // size) + 1),
            rows=rows,
            snapshots=snapshots,
            page_tokens=size,
            hybrid=self.hybrid,
            host_pages=host_pages,
            host_snapshots=host_snapshots,
        )
        self.cache = SequenceCache(plan)
        self.device = Device(plan)
        self.live: list[Live] = []
        self.pins: list[SnapshotRef] = []
        self.texts: list[Prefix] = [(0, 1, 1) * 9]
        self.now = 0.0
        self.num_moves = 0

    # -- sequences ------------------------------------------------------------------------------------------------------------
    @rule(data=st.data(), use_cache=st.integers(0, 7))
    def open(self, data: st.DataObject, use_cache: int) -> None:
        """A text seen before, whole or with another end; now and then without the cache."""
        tokens = self._draw_text(data)
        self._expect_match(tokens)
        resume = self.cache.match(tokens, self.now) if use_cache else COLD
        free_rows, possible = self.cache.num_free_rows, self.cache.free_pages_possible()
        idle, beside = self.cache.idle_pages(tokens, resume), self._held_beside(tokens, resume)
        lease = self.cache.open(tokens, resume, self.now)
        if lease is None:
            assert free_rows == 0 or idle > possible - beside, "refused, although there was room"
            assert self.cache.num_free_rows == free_rows, "a refusal kept the slot"
            assert self.cache.free_pages_possible() == possible, "a refusal changed the pages"
            return
        assert lease.start == resume.position
        self.live.append(Live(lease, tokens, lease.start))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 16), captures=st.sets(st.integers(0, 15), max_size=3), pin=st.integers(0, 5))
    def step(self, data: st.DataObject, count: int, captures: set[int], pin: int) -> None:
        """A piece of prefill or of an answer, with captures up to so many tokens before its end."""
        live = data.draw(st.sampled_from(self.live))
        if not self.cache.ready(live.lease):
            self._queue_moves()
            return
        end = min(live.position + count, CONTEXT)
        live.tokens += tuple(data.draw(st.integers(0, 1)) for _ in range(end - len(live.tokens)))
        if end > live.position:
            refs = self._plan(live, end, sorted({end - back for back in captures if end - back > live.position}))
            if refs and not pin:
                self.cache.pin(refs[0])  # a joiner waits for it
                self.pins.append(refs[0])

    @rule(data=st.data(), chunk=st.integers(4, 40), captures=st.sets(st.integers(0, 40), max_size=3))
    def converse(self, data: st.DataObject, chunk: int, captures: set[int]) -> None:
        """A sequence from its beginning to its end, among the others."""
        self.device.run()
        tokens = self._draw_text(data)
        lease = self.cache.open(tokens, self.cache.match(tokens, self.now), self.now)
        if lease is None:
            return
        live = Live(lease, tokens, lease.start)
        self.live.append(live)
        self._queue_moves()
        self._commit()
        while live.position < len(tokens):
            end = min(live.position + chunk, len(tokens))
            wanted = sorted(p for p in {*captures, len(tokens)} if live.position < p <= end)
            if self._plan(live, end, wanted) is None:
                break
            self._commit()
        self.live.remove(live)
        self.cache.close(lease, tokens, live.position, self.now)

    @rule(data=st.data(), back=st.integers(0, 6), pinned=st.sampled_from([None, 0, 1]))
    def twins(self, data: st.DataObject, back: int, pinned: int | None) -> None:
        """Two sequences evaluate one text in the same step and capture the same positions; a joiner may wait for either."""
        self.device.run()
        tokens = self._draw_text(data)
        resume = self.cache.match(tokens[:-1], self.now)
        for twin in range(2):
            lease = self.cache.open(tokens, resume, self.now)
            if lease is None:
                return
            live = Live(lease, tokens, lease.start)
            self.live.append(live)
            if not self.cache.ready(lease):
                return
            positions = sorted(p for p in {len(tokens) - back, len(tokens)} if p > lease.start)
            refs = self._plan(live, len(tokens), positions)
            if refs and pinned == twin:
                self.cache.pin(refs[-1])
                self.pins.append(refs[-1])
            if self.cache.match(tokens[:-1], self.now) != resume:
                return

    @rule(data=st.data(), poisoned=st.booleans())
    def run_device(self, data: st.DataObject, poisoned: bool) -> None:
        """All queued steps finish; their captures are published, or abandoned where the values were not finite."""
        for live in self.live:
            if poisoned and live.saves and data.draw(st.booleans()):
                self.cache.abandon(live.saves.pop())
        self._commit()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), broken=st.booleans())
    def close(self, data: st.DataObject, broken: bool) -> None:
        """An end, a cancel or a preemption; also with steps under way, whose captures are then lost."""
        live = data.draw(st.sampled_from(self.live))
        self.live.remove(live)
        if not broken and not self.hybrid:
            self.device.run()  # commit comes first: `valid` positions have been written
        self.cache.close(live.lease, live.tokens, 0 if broken else live.position, self.now)
        for ref in live.saves:
            self._expect_stale(ref)

    # -- everything else ------------------------------------------------------------------------------------------------------
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """A joiner keeps a snapshot."""
        tokens = data.draw(st.sampled_from(self.texts))
        resume = self.cache.match(tokens, self.now)
        if resume.snapshot is not None:
            assert self.cache.pin_at(tokens, resume.position) == resume.snapshot
            self.pins.append(resume.snapshot)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(self.pins))
        self.pins.remove(ref)
        self.cache.unpin(ref)

    @rule(seconds=st.sampled_from([0.0, 1.0, 60.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(sure=st.integers(0, 9))
    def clear(self, sure: int) -> None:
        """Everything is forgotten; live sequences go on."""
        if not sure:
            self.cache.clear()
            assert self.cache.match(self.texts[-1], self.now).matched_tokens == 0

    @precondition(lambda self: not self.live)
    @rule()
    def fill_with_one(self) -> None:
        """Alone, without pins, a sequence can have every page; it is then given back, and nothing is known any more."""
        while self.pins:
            self.cache.unpin(self.pins.pop())
        lease = self.cache.open((), COLD, self.now)
        assert lease is not None
        plan = self.cache.plan
        assert not self.cache.extend(lease, plan.kv_tokens + 1, self.now)
        assert self.cache.extend(lease, plan.kv_tokens, self.now)
        assert sorted(lease.table.array(plan.kv_tokens).tolist()) == list(range(plan.num_pages))
        self.cache.close(lease, (), 0, self.now)
        assert plan.num_host_pages or self.cache.stats().published_snapshots == 0, "a snapshot is left without pages"

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        stats = self.cache.stats()
        assert stats.free_pages + stats.cached_pages + stats.held_pages == stats.num_pages
        assert stats.free_rows == stats.num_rows - len(self.live)
        assert stats.pinned_snapshots >= len(set(self.pins))
        for live in self.live:
            assert len(live.lease.table) >= -(-live.position // self.device.page_tokens)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.device.run()
        for text in self.texts:
            self._expect_match(text)
        for live in self.live:
            self.cache.close(live.lease, live.tokens, 0, self.now)
        while self.pins:
            self.cache.unpin(self.pins.pop())
        self.cache.clear()
        self.cache.check()
        stats = self.cache.stats()
        assert (stats.free_pages, stats.free_snapshots, stats.free_rows) == (stats.num_pages, stats.num_snapshots, stats.num_rows)
        assert (stats.free_host_pages, stats.free_host_snapshots) == (stats.num_host_pages, stats.num_host_snapshots)

    # -- parts ----------------------------------------------------------------------------------------------------------------
    def _draw_text(self, data: st.DataObject) -> Prefix:
        known = data.draw(st.sampled_from(self.texts))
        keep = data.draw(st.integers(1, 2 * len(known)))
        if keep < len(known):
            known = (known[:keep] + tuple(data.draw(TAILS)))[: CONTEXT - 8]
            self.texts = [*self.texts[-12:], known]
        return known

    def _plan(self, live: Live, end: int, positions: list[int]) -> list[SnapshotRef] | None:
        """Queues a piece up to `end` with captures; None when there are no pages."""
        possible, before = self.cache.free_pages_possible(), live.lease.table.pages
        if not self.cache.extend(live.lease, end, self.now):
            assert live.lease.table.pages == before, "a refusal changed the table"
            assert self.cache.free_pages_possible() == possible, "a refusal changed the pages"
            needed = -(-end // self.device.page_tokens) - len(before)
            assert possible <= needed, f"{needed} pages (or one more for a copy) were refused with {possible} possible"
            return None
        copies = self.cache.take_copies(live.lease)
        assert self.cache.take_copies(live.lease) == [], "a copy was given out twice"
        refs = [self.cache.reserve(live.lease, live.tokens, position, self.now) for position in positions]
        taken = [ref for ref in refs if ref is not None]
        snapshots = {self.cache.position(ref): self.cache.device_snapshot(ref) for ref in taken}
        self._queue_moves()
        for source, target in copies:
            self.device.copy_page(source, target)
        if not live.started and not live.lease.row_comes:
            self.device.start_row(live.lease.row, self.cache.start_snapshot(live.lease))
        live.started = True
        self.device.forward(live.lease.row, live.lease.table.array(end).tolist(), live.tokens[:end], live.position, snapshots)
        live.position = end
        live.saves += taken
        return taken

    def _queue_moves(self) -> None:
        before, moves = self.cache.take_moves()
        assert before == self.num_moves
        self.num_moves += len(moves)
        self.device.move(moves)

    def _commit(self) -> None:
        self.device.run()
        self.cache.moves_over(self.num_moves)
        for live in self.live:
            if not live.started:
                continue
            self.cache.started(live.lease)
            for ref in live.saves:
                self.cache.publish(ref, live.tokens, live.lease, self.now)
            live.saves = []

    # -- what must hold -------------------------------------------------------------------------------------------------------
    def _expect_match(self, tokens: Prefix) -> None:
        """What `match` promises stands in the pages and the snapshot."""
        resume = self.cache.match(tokens, self.now)
        assert 0 <= resume.position <= resume.matched_tokens <= len(tokens)
        assert resume.snapshot is not None or resume.position == 0 or not self.hybrid
        if resume.position == len(tokens):
            assert resume.snapshot is not None, "no hidden row to sample from"
        lease = self.cache.open(tokens, resume, self.now)
        if lease is None:
            return
        self._queue_moves()
        row, pages, known = lease.row, lease.table.array(lease.start).tolist(), tokens[: resume.position]
        snapshot_id = None if resume.snapshot is None or lease.row_comes else self.cache.device_snapshot(resume.snapshot)

        def look() -> None:
            if resume.snapshot is not None:
                state = self.device.rows[row] if snapshot_id is None else self.device.snapshots[snapshot_id]
                assert state == known, "the state of other tokens"
            self.device.expect_known(pages, known)

        self.device.enqueue(look) if self.host_tier else look()
        self.cache.close(lease, tokens, 0, self.now)

    def _held_beside(self, tokens: Prefix, resume: ResumePoint) -> int:
        """Pages on the device that a pin on the resume point would hold beside those the lease itself does."""
        if resume.snapshot is None:
            return 0
        pool, tree = self.cache._pool, self.cache._tree
        own = tree.walk(token_array(tokens)).pages(resume.position, self.device.page_tokens)
        others = set(tree.claims_on_path(tree.node_of_snapshot(resume.snapshot.snapshot_id))) - set(own)
        return sum(not pool.is_held(page) and not pool.on_host(page) for page in others)

    def _expect_stale(self, ref: SnapshotRef) -> None:
        for use in (self.cache.pin, self.cache.abandon):
            try:
                use(ref)
            except StaleSnapshotError:
                continue
            raise AssertionError(f"{ref} was lost with its lease and can still be used")


class AttentionOnlyMachine(MemoryMachine):
    """The same for a model that resumes anywhere."""

    hybrid = False


class TwoTiersMachine(MemoryMachine):
    """The same with a host tier, which what is evicted goes to and comes back from."""

    host_tier = True


class AttentionOnlyTwoTiersMachine(AttentionOnlyMachine):
    host_tier = True


MACHINE = settings(max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
TestHybrid = MemoryMachine.TestCase
TestHybrid.settings = MACHINE
TestAttentionOnly = AttentionOnlyMachine.TestCase
TestAttentionOnly.settings = MACHINE
TestTwoTiers = TwoTiersMachine.TestCase
TestTwoTiers.settings = MACHINE
TestAttentionOnlyTwoTiers = AttentionOnlyTwoTiersMachine.TestCase
TestAttentionOnlyTwoTiers.settings = MACHINE
