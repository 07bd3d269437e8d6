"""Pages and snapshots that come from outside this memory or are copied out of it: from files and into them, as numbers.

Coming in is an `Import`: pages and snapshots are taken, someone fills them, and `finish` makes them matchable. Nobody sees them
before, and `release` gives them back at any moment, also when memory is short.

A page or snapshot has its new place as soon as a move is queued, but the move is made by a step. So nobody may copy anything while
moves wait for one (`moves_wait`); `waiting` makes the scheduler plan one for them.

Going out needs no pins: `path` tells where a published snapshot and the pages of its path are at this moment. Copies out of them
that are given to the compute thread at once are right, because whoever gets those places next writes them in a later step. Before
the next copy it must be asked again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from svc.memory.eviction import Evictor
from svc.memory.page_pool import PagePool, Pages
from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import PrefixTree
from svc.memory.snapshot_ring import SnapshotRef, SnapshotRing
from svc.memory.tiers import MoveQueue
from svc.memory.tokens import TokenArray

MAX_NEWS = 4_096  # published snapshots remembered for someone who copies them: the oldest are forgotten first
WRITER = -2  # of the pages of imports: no lease has that serial


@dataclass(frozen=True, slots=True)
class Incoming:
    """A state that is to come in: after so many tokens."""

    position: int
    kind: WantedKind


@dataclass(slots=True, eq=False)
class Import:
    """Places taken for a path that comes in. Fill pages[first_own:] and the snapshots, then `finish` it, if it is not `closed`."""

    tokens: TokenArray
    pages: Pages  # of the whole path: known ones, then its own
    first_own: int  # index in `pages`
    snapshots: list[tuple[int, SnapshotRef]]  # by position
    closed: bool = False

    @property
    def own(self) -> Pages:
        return self.pages[self.first_own :]


@dataclass(frozen=True, slots=True)
class KnownPath:
    """A published snapshot: the tokens before it and their pages."""

    tokens: TokenArray
    pages: Pages
    kind: WantedKind


@dataclass(slots=True, eq=False)
class Transfers:
    """Part of one SequenceCache, over its pages, snapshots and tree."""

    pool: PagePool
    ring: SnapshotRing
    tree: PrefixTree
    evictor: Evictor
    moves: MoveQueue
    waiting: list[Callable[[], None]] = field(default_factory=list)  # to be called once no move waits for a step
    # Published since it was last emptied: snapshots, and tokens whose pages an attention-only model knows now.
    news: deque[SnapshotRef | TokenArray] = field(default_factory=lambda: deque(maxlen=MAX_NEWS))
    distrusted: deque[TokenArray] = field(default_factory=lambda: deque(maxlen=MAX_NEWS))  # tokens whose states are not trusted
    imports: list[Import] = field(default_factory=list)
    copied: bool = False  # whether somebody empties `news` and `distrusted`

    # -- coming in --------------------------------------------------------------------------------------------------------------
    def begin(self, tokens: TokenArray, states: Sequence[Incoming], now: float) -> Import | None:
        """Takes places for all of `tokens` that no page holds yet, and for those states that get one, the deepest first.

        None, and nothing taken, where the device has too few pages, or a hybrid's deepest state has no snapshot and gets none.
        """
        walk = self.tree.walk(tokens)
        first_own = walk.matched // self.pool.page_tokens
        known = self.tree.pages(walk, first_own * self.pool.page_tokens)
        wanted = self.pool.pages_for(len(tokens)) - first_own
        self.pool.pin(known)
        snapshots: list[tuple[int, SnapshotRef]] = []
        if self.evictor.free_pages(wanted, now):
            snapshots = self._reserve(tokens, states, now)
        reserved = any(position == len(tokens) for position, _ in snapshots)
        complete = reserved or not self.tree.hybrid or self.tree.deepest_position(self.tree.walk(tokens)) == len(tokens)
        if not complete or self.pool.num_free < wanted:
            for _, ref in snapshots:
                self.ring.release(ref)
            self.pool.unpin(known)
            return None
        pages = np.concatenate([known, self.pool.allocate(wanted, WRITER)])
        coming = Import(tokens, pages, first_own, sorted(snapshots, key=lambda item: item[0]))
        self.imports.append(coming)
        return coming

    def _reserve(self, tokens: TokenArray, states: Sequence[Incoming], now: float) -> list[tuple[int, SnapshotRef]]:
        reserved: list[tuple[int, SnapshotRef]] = []
        for state in sorted(states, key=lambda state: -state.position):
            shallower = self.tree.deepest_position(self.tree.walk(tokens[: state.position]))
            if shallower == state.position:
                continue
            # Somebody waits for the deepest one; the others compete with what is there.
            kind = WantedKind.JOIN if state.position == len(tokens) else state.kind
            ref = self.evictor.take_snapshot(tokens, state.position, shallower, kind, now)
            if ref is not None:
                reserved.append((state.position, ref))
        return reserved

    def finish(self, coming: Import, now: float) -> None:
        """Everything has been written: it can be matched from now on."""
        assert not coming.closed, "an import is finished twice, or after its release"
        coming.closed = True
        self.imports.remove(coming)
        if not self.tree.hybrid:
            self.tree.insert_pages(coming.tokens, coming.pages, now)
        for position, ref in coming.snapshots:
            self.ring.mark_written(ref)
            node = self.tree.insert(coming.tokens[:position], coming.pages, now)
            if node.snapshot_id is not None:
                self.ring.release(ref)
                continue
            self.tree.attach(node, ref.snapshot_id, now)
            self.ring.mark_published(ref)
            self.evictor.published(node, coming.tokens[:position], now)
        self.pool.stop_writing(coming.own, WRITER)
        self.pool.unpin(coming.pages)

    def release(self, coming: Import) -> None:
        """It comes no more, or its memory is needed. Nothing happens if it is closed."""
        if coming.closed:
            return
        coming.closed = True
        self.imports.remove(coming)
        for _, ref in coming.snapshots:
            self.ring.release(ref)
        self.pool.stop_writing(coming.own, WRITER)
        self.pool.unpin(coming.pages)

    def release_all(self) -> bool:
        """Memory is short. Whether there was something to release."""
        released = bool(self.imports)
        for coming in self.imports.copy():
            self.release(coming)
        return released

    # -- moves between the tiers ----------------------------------------------------------------------------------------------
    @property
    def moves_wait(self) -> bool:
        """Whether places are ahead of what the device has been told."""
        return len(self.moves) > 0

    @property
    def wants_step(self) -> bool:
        """Whether somebody waits for a step that makes the moves."""
        return self.moves_wait and bool(self.waiting)

    def moves_taken(self) -> None:
        """A step has them all. It is submitted before anything else happens."""
        while self.waiting:
            self.waiting.pop()()

    # -- going out --------------------------------------------------------------------------------------------------------------
    def published(self, what: SnapshotRef | TokenArray, space: str) -> None:
        """A snapshot, or tokens of an attention-only model, can be matched now. Only those of the common space are ever copied."""
        if self.copied and not space:
            self.news.append(what if isinstance(what, SnapshotRef) else what.copy())

    def distrust(self, tokens: TokenArray, space: str = "") -> None:
        """No state of a sequence with these tokens may be used any more, wherever it was copied to."""
        if self.copied and not space:
            self.distrusted.append(tokens.copy())

    def path(self, ref: SnapshotRef | TokenArray) -> KnownPath | None:
        """What leads to a snapshot, and its pages as they are now; None if it is not published any more.

        Of an attention-only model also what is known of some tokens, as far as it fills whole pages."""
        if not isinstance(ref, SnapshotRef):
            walk = self.tree.walk(ref)
            end = walk.matched // self.pool.page_tokens * self.pool.page_tokens
            return KnownPath(ref[:end], self.tree.pages(walk, end), WantedKind.ANSWER_END)
        if not self.ring.is_published(ref):
            return None
        node = self.tree.node_of_snapshot(ref.snapshot_id)
        return KnownPath(self.tree.path_tokens(node), self.tree.pages_of(node), self.ring.kind(ref.snapshot_id))

    def on_path(self, tokens: TokenArray) -> list[SnapshotRef]:
        """The published snapshots at which a sequence with these tokens could resume, by position."""
        walk = self.tree.walk(tokens)
        return [self.ring.ref(node.snapshot_id) for node in walk.full_path if node.snapshot_id is not None]

    def forget(self, tokens: TokenArray) -> None:
        """Drops what only a sequence with these tokens can use: its snapshots and pages behind the last branch, as far as they are
        not pinned. On the disk all of its states go."""
        while (path := self.tree.walk(tokens).full_path) and not path[-1].children:
            leaf = path[-1]
            if leaf.snapshot_id is not None and self.ring.is_pinned(leaf.snapshot_id):
                return
            self.evictor.release_snapshot(self.tree.drop_leaf(leaf))
        self.distrust(tokens)

    # -- checks -----------------------------------------------------------------------------------------------------------------
    def page_pins(self) -> list[int]:
        """Every page once per pin."""
        return [page for coming in self.imports for page in coming.pages.tolist()]

    @property
    def num_reserved(self) -> int:
        """Snapshots reserved for imports."""
        return sum(len(coming.snapshots) for coming in self.imports)
