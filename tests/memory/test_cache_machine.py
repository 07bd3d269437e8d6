"""Random operations on the memory, against a device that remembers which tokens are behind every state, page row and snapshot."""

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from svc.memory.lease import COLD, Lease, Reservation, ResumePoint, StepMemory
from svc.memory.placement import WantedKind
from svc.memory.sequence_cache import SequenceCache, SnapshotRef, StaleSnapshotError
from svc.memory.transfers import Import, Incoming
from tests.memory.device_model import Chunk, Device, GrowingTokens, Prefix, small_plan

CONTEXT = 40
TAILS = st.lists(st.integers(0, 1), max_size=24)
KINDS = st.sampled_from([WantedKind.SPARSE, WantedKind.JOIN])
MOST_UNDER_WAY = 2


@dataclass(eq=False)
class Live:
    """A sequence in a slot as the scheduler would know it."""

    lease: Lease
    source: GrowingTokens
    planned: int  # positions evaluated once all steps under way are done
    position: int  # evaluated in finished steps
    leaving: bool = False  # a step under way saves its state and closes its lease


@dataclass(eq=False)
class Step:
    """A step under way."""

    memory: StepMemory
    ends: dict[Live, int] = field(default_factory=dict)  # how far it evaluates each sequence


class MemoryMachine(RuleBasedStateMachine):
    """Everything that can be matched holds exactly the tokens matched, whatever came before, and nothing is ever lost.

    A step begins before the one before has finished, so that sequences close, pages change hands and captures are discarded while
    work on them is still under way.
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
        self.steps: list[Step] = []  # under way, oldest first
        self.pins: list[SnapshotRef] = []
        self.imports: list[Import] = []
        self.texts: list[Prefix] = [(0, 1, 1) * 9]
        self.matched: dict[Prefix, ResumePoint] = {}  # by text, as it was when last looked at
        self.now = 0.0
        self.moves_over = 0  # as reported to the cache

    # -- sequences ------------------------------------------------------------------------------------------------------------
    @rule(data=st.data(), use_cache=st.integers(0, 7))
    def open(self, data: st.DataObject, use_cache: int) -> None:
        """A text seen before, whole or with another end; now and then without the cache."""
        tokens = self._draw_text(data)
        self._expect_match(tokens)
        self._open(tokens, use_cache=bool(use_cache))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(1, 3))
    def step(self, data: st.DataObject, size: int) -> None:
        """Chunks of prompts or answers of several sequences, with captures up to 15 tokens before their ends.

        Some are only started, some are saved and leave.
        """
        self._make_way()
        if not self.live:
            return
        chunks: list[Chunk] = []
        captures: list[Reservation] = []
        saves: list[Reservation] = []
        step_ends: dict[Live, int] = {}
        started: list[Live] = []
        for live in data.draw(st.lists(st.sampled_from(self.live), max_size=size, unique=True)):
            if not live.lease.ready or live.leaving:
                continue
            what = data.draw(st.integers(0, 9))
            if what == 0 and live.lease.started:
                save = self._reserve(live, live.planned, data.draw(KINDS)) if live.planned else None
                if save is not None:
                    saves.append(save)
                    live.leaving = True
                continue
            started.append(live)
            end = min(live.planned + data.draw(st.integers(1, 16)), CONTEXT)
            live.source.tokens += tuple(data.draw(st.integers(0, 1)) for _ in range(end - len(live.source.tokens)))
            if what == 1 or end == live.planned or not self._extend(live, end):
                continue
            backs = data.draw(st.sets(st.integers(0, 15), max_size=3))
            captures += self._reserve_all(live, {end - back for back in backs if end - back > live.planned}, data)
            chunks.append(Chunk(live.lease, live.source.tokens[:end], live.planned))
            live.planned = step_ends[live] = end
        self._begin([live.lease for live in started], chunks, captures, saves, step_ends)

    @rule(data=st.data(), chunk=st.integers(4, 40), captures=st.sets(st.integers(0, 40), max_size=3))
    def converse(self, data: st.DataObject, chunk: int, captures: set[int]) -> None:
        """A sequence from its beginning to its end, among the others."""
        tokens = self._draw_text(data)
        live = self._open(tokens)
        if live is None:
            return
        if not live.lease.ready:
            self._begin()
        self._finish_all()
        while live.planned < len(tokens):
            end = min(live.planned + chunk, len(tokens))
            if not self._extend(live, end):
                break
            wanted = {position for position in {*captures, len(tokens)} if live.planned < position <= end}
            self._evaluate([live], end, wanted, data)
            self._finish_all()
        self._close(live, live.position)

    @rule(data=st.data(), back=st.integers(0, 6))
    def twins(self, data: st.DataObject, back: int) -> None:
        """Two sequences evaluate one text in the same step and capture the same positions; a joiner may wait for either."""
        self._finish_all()
        tokens = self._draw_text(data)
        twins = [live for live in (self._open(tokens), self._open(tokens)) if live is not None and live.lease.ready]
        twins = [live for live in twins if live.planned < len(tokens) and self._extend(live, len(tokens))]
        self._evaluate(twins, len(tokens), {len(tokens) - back, len(tokens)}, data)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), broken=st.booleans())
    def close(self, data: st.DataObject, broken: bool) -> None:
        """An end, a cancel or a preemption; also with steps under way, whose captures and saves are then lost."""
        live = data.draw(st.sampled_from(self.live))
        self._close(live, 0 if broken else live.position)

    # -- ends of steps --------------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.steps)
    @rule(data=st.data(), late=st.booleans())
    def finish(self, data: st.DataObject, late: bool) -> None:
        """The oldest step is done; its moves may be done later."""
        self._finish(set(), late=late)

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def finish_poisoned(self, data: st.DataObject) -> None:
        """The numbers of some sequences are not finite: what those published or resumed from is not matched any more."""
        poisoned = {live for live in self.live if data.draw(st.booleans())}
        self._finish({live.lease for live in poisoned})
        for live in poisoned & set(self.live):
            trail = list(live.lease.trail)
            self.cache.distrust(live.lease)
            assert not any(self.cache._ring.is_published(ref) for ref in trail)
            self._close(live, 0)
            assert self.hybrid or not self._known()

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), done=st.booleans())
    def abort(self, data: st.DataObject, done: bool) -> None:
        """The oldest step fails, and what was planned behind it is given back; what the device did of them does not matter."""
        moves = self.steps[-1].memory.moves_before + len(self.steps[-1].memory.moves)
        carried = moves > self.moves_over
        while done and self.device.num_queued:
            self.device.run_one()
        self.device.drop(moves)
        steps, self.steps = self.steps, []
        for step in steps:
            self.cache.abort(step.memory, self.now)
        hit = {lease for step in steps for lease in step.memory.leases}
        for live in list(self.live):
            if live.lease.closed:
                self.live.remove(live)
            elif live.lease in hit or not live.lease.ready:
                self._close(live, live.position)
        self.cache.recover()
        self.imports.clear()  # given up
        self.moves_over = moves
        assert not carried or not self._known(), "pages may have been lost on their way, and are matched"

    # -- everything else ------------------------------------------------------------------------------------------------------
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        """A joiner keeps a snapshot."""
        tokens = data.draw(st.sampled_from(self.texts))
        resume = self.cache.match(tokens)
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

    @rule(data=st.data(), backs=st.sets(st.integers(0, 9), max_size=3))
    def bring(self, data: st.DataObject, backs: set[int]) -> None:
        """A text comes in from a file: pages and states are filled by a step of their own, as by whoever copies them."""
        self._make_way()
        tokens = self._draw_text(data)
        states = [Incoming(len(tokens) - back, data.draw(KINDS)) for back in {0, *backs} if back < len(tokens)]
        available = self.cache.num_available_pages()
        coming = self.cache.transfers.begin(np.array(tokens, np.int32), states, self.now)
        if coming is None:
            assert self.cache.num_available_pages() >= available
            return
        self._begin(then=self._filling(coming, tokens))
        self.imports.append(coming)

    def _filling(self, coming: Import, tokens: Prefix) -> Callable[[], None]:
        transfers, size = self.cache.transfers, self.device.page_tokens
        places = [transfers.pool.device_place(page) for page in coming.own.tolist()]
        snapshots = [(position, transfers.ring.device_place(ref)) for position, ref in coming.snapshots]

        def fill() -> None:
            for position in range(coming.first_own * size, len(tokens)):
                page = places[position // size - coming.first_own]
                self.device.pages[page][position % size] = tokens[: position + 1]
            for position, place in snapshots:
                self.device.set_snapshot(place, tokens[:position])

        return fill

    @precondition(lambda self: self.imports)
    @rule(data=st.data(), finish=st.booleans())
    def end_import(self, data: st.DataObject, finish: bool) -> None:
        """It is there, or it is given up, perhaps while it is being filled."""
        coming = self.imports.pop(data.draw(st.integers(0, len(self.imports) - 1)))
        if finish:
            self._finish_all()
            self.cache.transfers.finish(coming, self.now)
            self._expect_match(tuple(coming.tokens.tolist()))
        else:
            self.cache.transfers.release(coming)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """What only one sequence can use is dropped; others keep theirs."""
        tokens = np.array(self._draw_text(data), np.int32)
        before = self.cache.match(tokens).matched_tokens
        self.cache.transfers.forget(tokens)
        assert self.cache.match(tokens).matched_tokens <= before

    @rule(sure=st.integers(0, 9))
    def clear(self, sure: int) -> None:
        """Everything is forgotten; live sequences go on."""
        if not sure:
            self.cache.clear()
            assert not self._known()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), sure=st.integers(0, 5))
    def fill(self, data: st.DataObject, sure: int) -> None:
        """Beside all others and whatever is pinned, a sequence can have every available page and not one more."""
        live = data.draw(st.sampled_from(self.live))
        size = self.device.page_tokens
        if not sure and live.lease.ready and not live.leaving and live.lease.shared_page is None:
            available = self.cache.num_available_pages()
            end = (len(live.lease.table) + available) * size
            assert not self.cache.extend(live.lease, end + 1, self.now)
            assert self.cache.extend(live.lease, end, self.now)
            assert self.cache.num_available_pages() == 0
            self._close(live, live.position)

    @precondition(lambda self: not self.live)
    @rule()
    def fill_with_one(self) -> None:
        """Alone, without pins, a sequence can have every page; it is then given back, and nothing is known any more."""
        while self.pins:
            self.cache.unpin(self.pins.pop())
        self.cache.transfers.release_all()
        self.imports.clear()
        lease = self.cache.open((), COLD, self.now)
        assert lease is not None
        plan = self.cache.plan
        assert not self.cache.extend(lease, plan.kv_tokens + 1, self.now)
        assert self.cache.extend(lease, plan.kv_tokens, self.now)
        assert sorted(lease.table.array(plan.kv_tokens).tolist()) == list(range(plan.num_pages))
        self.cache.close(lease, 0, self.now)
        assert plan.num_host_pages or self.cache.stats().published_snapshots == 0, "a snapshot is left without pages"

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        stats = self.cache.stats()
        assert stats.free_pages + stats.cached_pages + stats.pinned_pages == stats.num_pages
        assert stats.free_rows == stats.num_rows - len(self.live)
        assert stats.pinned_snapshots >= len(set(self.pins))
        for live in self.live:
            assert len(live.lease.table) >= -(-live.planned // self.device.page_tokens)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self._finish_all()
        for text in self.texts:
            self._expect_match(text)
        self._finish_all()
        for live in list(self.live):
            self._close(live, 0)
        while self.pins:
            self.cache.unpin(self.pins.pop())
        self.cache.transfers.release_all()
        self.cache.clear()
        self.cache.check()
        stats = self.cache.stats()
        assert (stats.free_pages, stats.free_snapshots, stats.free_rows) == (stats.num_pages, stats.num_snapshots, stats.num_rows)
        assert (stats.free_host_pages, stats.free_host_snapshots) == (stats.num_host_pages, stats.num_host_snapshots)

    # -- sequences, in part -----------------------------------------------------------------------------------------------------
    def _draw_text(self, data: st.DataObject) -> Prefix:
        known = data.draw(st.sampled_from(self.texts))
        keep = data.draw(st.integers(1, 2 * len(known)))
        if keep < len(known):
            known = (known[:keep] + tuple(data.draw(TAILS)))[: CONTEXT - 8]
            self.texts = [*self.texts[-12:], known]
        return known

    def _open(self, tokens: Prefix, *, use_cache: bool = True) -> Live | None:
        """None: no row, or fewer pages available than announced; then nothing has changed."""
        source = GrowingTokens(tokens)
        resume = self.cache.match(tokens) if use_cache else COLD
        free_rows, available = self.cache.stats().free_rows, self.cache.num_available_pages()
        wanted = self.cache.num_pages_to_pin(source, resume)
        lease = self.cache.open(source, resume, self.now)
        if lease is None:
            assert free_rows == 0 or wanted > available, "refused, although there were pages"
            assert self.cache.stats().free_rows == free_rows, "a refusal kept the row"
            assert self.cache.num_available_pages() == available, "a refusal changed the pages"
            return None
        assert lease.start == resume.position
        assert self.cache.num_available_pages() == available - wanted
        live = Live(lease, source, lease.start, lease.start)
        self.live.append(live)
        return live

    def _extend(self, live: Live, end: int) -> bool:
        """Pages up to `end`, if as many are available as that takes; else nothing changes."""
        lease, before = live.lease, live.lease.table.pages.tolist()
        available, copies = self.cache.num_available_pages(), self.cache.stats().counters.num_page_copies
        most = self.cache.num_wanted_pages(lease, end)
        if self.cache.extend(lease, end, self.now):
            taken = len(lease.table) - len(before) + self.cache.stats().counters.num_page_copies - copies
            assert taken <= most
            assert self.cache.num_available_pages() == available - taken
            return True
        assert lease.table.pages.tolist() == before, "a refusal changed the table"
        assert self.cache.num_available_pages() == available, "a refusal changed the pages"
        assert most > available, f"{most} pages at most were refused with {available} available"
        return False

    def _reserve(self, live: Live, position: int, kind: WantedKind) -> Reservation | None:
        """For a JOIN a snapshot is found wherever one is free or may go."""
        ring, lease = self.cache._ring, live.lease
        resume = self.cache.match(live.source.tokens[:position])
        known = position in lease.reserved or (resume.position == position and resume.snapshot is not None)
        evictable = ring.num_free or any(ring.evictable_on_device(place) for place in range(ring.num_snapshots))
        reservation = self.cache.reserve(lease, position, self.now, kind)
        assert reservation is None or (not known and evictable)
        assert kind is not WantedKind.JOIN or reservation is not None or known or not evictable, (
            "nobody captures what others wait for"
        )
        return reservation

    def _reserve_all(self, live: Live, positions: set[int], data: st.DataObject) -> list[Reservation]:
        """Captures of a step; some are discarded before it begins, for some a joiner waits."""
        taken = []
        for position in sorted(positions):
            reservation = self._reserve(live, position, data.draw(KINDS))
            if reservation is None:
                continue
            fate = data.draw(st.integers(0, 5))
            if fate <= 1:
                self.cache.pin(reservation.ref)
                self.pins.append(reservation.ref)
            if fate in (1, 2):
                self.cache.discard(reservation)
                self._expect_stale(reservation)
            else:
                taken.append(reservation)
        return taken

    def _evaluate(self, lives: list[Live], end: int, positions: set[int], data: st.DataObject) -> None:
        """One step that evaluates them up to `end`, where they have pages."""
        captures, chunks = [], []
        for live in lives:
            captures += self._reserve_all(live, {position for position in positions if position > live.planned}, data)
            chunks.append(Chunk(live.lease, live.source.tokens[:end], live.planned))
            live.planned = end
        self._begin([live.lease for live in lives], chunks, captures, [], dict.fromkeys(lives, end))

    def _close(self, live: Live, valid: int) -> None:
        self.live.remove(live)
        reserved = list(live.lease.reserved.values())
        self.cache.close(live.lease, valid, self.now)
        for reservation in reserved:
            self._expect_stale(reservation)

    # -- steps, in part ---------------------------------------------------------------------------------------------------------
    def _begin(
        self,
        leases: list[Lease] | None = None,
        chunks: list[Chunk] | None = None,
        captures: list[Reservation] | None = None,
        saves: list[Reservation] | None = None,
        ends: dict[Live, int] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        memory = self.cache.begin(leases or [], captures or [], saves or [])
        self.device.enqueue(memory, chunks or [], then)
        self.steps.append(Step(memory, ends or {}))

    def _make_way(self) -> None:
        """For one more step under way."""
        while len(self.steps) >= MOST_UNDER_WAY:
            self._finish(set())

    def _finish(self, distrusted: set[Lease], *, late: bool = False) -> None:
        step = self.steps.pop(0)
        self.device.run_one()
        if not late:
            self.moves_over = self.device.num_moves
        self.cache.finish(step.memory, self.now, self.moves_over, distrusted)
        for live, end in step.ends.items():
            live.position = end
        for save in step.memory.saves:
            assert save.lease.closed
        self.live = [live for live in self.live if not live.lease.closed]
        for reservation in (*step.memory.captures, *step.memory.saves):
            self._expect_used_up(reservation)

    def _finish_all(self) -> None:
        while self.steps:
            self._finish(set())

    # -- what must hold -------------------------------------------------------------------------------------------------------
    def _known(self) -> bool:
        """Whether any text can be matched in part."""
        return any(self.cache.match(text).matched_tokens for text in self.texts)

    def _expect_match(self, tokens: Prefix) -> None:
        """The pages and the snapshot hold what `match` promises."""
        resume = self.cache.match(tokens)
        assert 0 <= resume.position <= resume.matched_tokens <= len(tokens)
        assert resume.snapshot is not None or resume.position == 0 or not self.hybrid
        if resume.position == len(tokens):
            assert resume.snapshot is not None, "no hidden row to sample from"
        again = self.cache.match(tokens, self.matched.get(tokens))
        assert again == resume, f"{again}, but {resume} when nothing is known of before"
        self.matched[tokens] = again
        self._make_way()
        lease = self.cache.open(tokens, self.cache.match(tokens, again), self.now)
        if lease is None:
            return
        row, pages, known = lease.row, lease.table.array(lease.start).tolist(), tokens[: lease.start]
        place = None if lease.snapshot is None or lease.row_comes else self.cache._ring.device_place(lease.snapshot)

        def look() -> None:
            if place is not None:
                assert self.device.snapshots[place] == known, "the state of other tokens"
            elif lease.row_comes:
                assert self.device.rows[row] == known, "the state of other tokens"
            self.device.expect_known(pages, known)

        if self.host_tier:
            self._begin(then=look)
        else:
            look()
        self.cache.close(lease, 0, self.now)

    def _expect_used_up(self, reservation: Reservation) -> None:
        """Published or gone: nobody can discard it any more."""
        try:
            self.cache.discard(reservation)
        except StaleSnapshotError:
            return
        raise AssertionError(f"{reservation} is still reserved when its step is over")

    def _expect_stale(self, reservation: Reservation) -> None:
        """Lost with its lease or its step: it can be neither published nor pinned."""
        self._expect_used_up(reservation)
        try:
            self.cache.pin(reservation.ref)
        except StaleSnapshotError:
            return
        raise AssertionError(f"{reservation} is lost and can still be pinned")


class AttentionOnlyMachine(MemoryMachine):
    """The same for a model that resumes anywhere."""

    hybrid = False


class TwoTiersMachine(MemoryMachine):
    """The same with a host tier, which what is evicted goes to and comes back from."""

    host_tier = True


class AttentionOnlyTwoTiersMachine(AttentionOnlyMachine):
    host_tier = True


MACHINES = [MemoryMachine, AttentionOnlyMachine, TwoTiersMachine, AttentionOnlyTwoTiersMachine]


@pytest.mark.parametrize("num_examples", [25, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", MACHINES)
def test_any_operations(machine: type[MemoryMachine], num_examples: int) -> None:
    """The rules and invariants of the machine hold in random order."""
    health = list(HealthCheck)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=num_examples, stateful_step_count=50, deadline=None, suppress_health_check=health)
    )
