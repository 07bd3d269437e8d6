"""Snapshots as numbers: life cycle, generations and pins.

Owner of all snapshot states. A snapshot keeps its id, and its references stay valid, when it moves between the tiers (tiers.py).
The prefix tree knows which path of tokens and which pages it belongs to.
"""

import enum
from dataclasses import dataclass

from svc.memory.placement import WantedKind
from svc.memory.tiers import Tiers


class StaleSnapshotError(RuntimeError):
    """A reference to a snapshot that is no longer there, or not in the state the caller thinks. Always our bug, never served."""


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """One use of a snapshot id. An id freed and reserved again has a new generation, so an old reference is an error."""

    snapshot_id: int
    generation: int


class SnapshotState(enum.Enum):
    FREE = "free"
    RESERVED = "reserved"  # the device will write it
    WRITTEN = "written"  # the device has written it
    PUBLISHED = "published"  # in the tree: can be matched
    STRANDED = "stranded"  # its path or its writer is gone; never matched; kept only until the last pin goes


TRANSITIONS: dict[SnapshotState, frozenset[SnapshotState]] = {
    SnapshotState.FREE: frozenset({SnapshotState.RESERVED}),
    SnapshotState.RESERVED: frozenset({SnapshotState.WRITTEN, SnapshotState.STRANDED, SnapshotState.FREE}),
    SnapshotState.WRITTEN: frozenset({SnapshotState.PUBLISHED, SnapshotState.STRANDED, SnapshotState.FREE}),
    SnapshotState.PUBLISHED: frozenset({SnapshotState.STRANDED, SnapshotState.FREE}),
    SnapshotState.STRANDED: frozenset({SnapshotState.FREE}),
}


class SnapshotRing:
    """`num_snapshots` snapshots on the device and `num_host_snapshots` on the host.

    References are checked on every call: StaleSnapshotError, never another sequence's state.
    """

    def __init__(self, num_snapshots: int, num_host_snapshots: int = 0) -> None:
        self.num_snapshots = num_snapshots
        self._tiers = Tiers(num_snapshots, num_host_snapshots)
        num_snapshots += num_host_snapshots
        self._free = list(range(num_snapshots - 1, -1, -1))
        self._state = [SnapshotState.FREE] * num_snapshots
        self._generation = [0] * num_snapshots
        self._pins = [0] * num_snapshots
        self._position = [0] * num_snapshots
        self._kind = [WantedKind.SPARSE] * num_snapshots

    def __repr__(self) -> str:
        counts = {state.value: self._state.count(state) for state in SnapshotState}
        return f"SnapshotRing({counts})"

    @property
    def num_free(self) -> int:
        """Snapshots free on the device."""
        return self._tiers.free_on_device

    @property
    def num_host_snapshots(self) -> int:
        return self._tiers.num_host

    @property
    def num_free_on_host(self) -> int:
        return self._tiers.free_on_host

    def count(self, state: SnapshotState) -> int:
        return self._state.count(state)

    @property
    def num_pinned(self) -> int:
        return sum(1 for pins in self._pins if pins)

    # -- looking --------------------------------------------------------------------------------------------------------------
    def ref(self, snapshot_id: int) -> SnapshotRef:
        """The current reference to an id in use."""
        assert self._state[snapshot_id] is not SnapshotState.FREE, f"snapshot {snapshot_id} is free"
        return SnapshotRef(snapshot_id, self._generation[snapshot_id])

    def state(self, ref: SnapshotRef) -> SnapshotState:
        self._verify(ref)
        return self._state[ref.snapshot_id]

    def position(self, ref: SnapshotRef) -> int:
        """Number of tokens before the state."""
        self._verify(ref)
        return self._position[ref.snapshot_id]

    def kind(self, snapshot_id: int) -> WantedKind:
        """Why the state was captured."""
        assert self._state[snapshot_id] is not SnapshotState.FREE, f"snapshot {snapshot_id} is free"
        return self._kind[snapshot_id]

    def is_pinned(self, snapshot_id: int) -> bool:
        return self._pins[snapshot_id] > 0

    def is_published(self, ref: SnapshotRef) -> bool:
        """Whether `ref` is current and can be matched. The one question a stale reference may ask."""
        return self._generation[ref.snapshot_id] == ref.generation and self._state[ref.snapshot_id] is SnapshotState.PUBLISHED

    # -- life cycle -----------------------------------------------------------------------------------------------------------
    def reserve(self, position: int, kind: WantedKind) -> SnapshotRef | None:
        """A free snapshot on the device for the state after `position` tokens, captured as `kind`, or None."""
        if not self.num_free:
            return None
        snapshot_id = self._free.pop()
        self._tiers.put(snapshot_id)
        self._move(snapshot_id, SnapshotState.RESERVED)
        self._position[snapshot_id], self._kind[snapshot_id] = position, kind
        return SnapshotRef(snapshot_id, self._generation[snapshot_id])

    def mark_written(self, ref: SnapshotRef) -> None:
        self._verify(ref)
        self._move(ref.snapshot_id, SnapshotState.WRITTEN)

    def mark_published(self, ref: SnapshotRef) -> None:
        self._verify(ref)
        self._move(ref.snapshot_id, SnapshotState.PUBLISHED)

    def release(self, ref: SnapshotRef) -> None:
        """Ends the snapshot in any state: free at once, or stranded until the last pin goes. It is never matched again."""
        self._verify(ref)
        if self._pins[ref.snapshot_id]:
            self._move(ref.snapshot_id, SnapshotState.STRANDED)
        else:
            self._set_free(ref.snapshot_id)

    # -- pins -----------------------------------------------------------------------------------------------------------------
    def pin(self, ref: SnapshotRef) -> bool:
        """One more pin; True when it is the first. A stranded snapshot cannot be pinned anew."""
        self._verify(ref)
        if self._state[ref.snapshot_id] is SnapshotState.STRANDED:
            raise StaleSnapshotError(f"{ref} is stranded and cannot be pinned")
        self._pins[ref.snapshot_id] += 1
        return self._pins[ref.snapshot_id] == 1

    def unpin(self, ref: SnapshotRef) -> bool:
        """One pin less; True when it was the last. A stranded snapshot is then free."""
        self._verify(ref)
        assert self._pins[ref.snapshot_id] > 0, f"{ref} is unpinned more often than pinned"
        self._pins[ref.snapshot_id] -= 1
        last = self._pins[ref.snapshot_id] == 0
        if last and self._state[ref.snapshot_id] is SnapshotState.STRANDED:
            self._set_free(ref.snapshot_id)
        return last

    # -- tiers ----------------------------------------------------------------------------------------------------------------
    def on_host(self, snapshot_id: int) -> bool:
        return self._tiers.on_host(snapshot_id)

    def device_place(self, ref: SnapshotRef) -> int:
        """Its place on the device."""
        self._verify(ref)
        return self._tiers.device_place(ref.snapshot_id)

    def host_place(self, ref: SnapshotRef) -> int:
        self._verify(ref)
        return self._tiers.host_place(ref.snapshot_id)

    def move_out(self, ref: SnapshotRef) -> tuple[int, int]:
        """A published, unpinned snapshot to the host, which must have a free place: (place on the device, place on the host)."""
        assert self.is_published(ref), f"{ref} is {self.state(ref).value} and cannot be moved"
        assert not self._pins[ref.snapshot_id], f"{ref} is pinned and cannot be moved"
        return self._tiers.move_out(ref.snapshot_id)

    # -- candidates for eviction ----------------------------------------------------------------------------------------------
    def evictable_on_device(self, place: int) -> SnapshotRef | None:
        """The snapshot in that place of the device if eviction may take it: published and not pinned."""
        return self._evictable(self._tiers.id_on_device(place))

    def evictable_on_host(self, place: int) -> SnapshotRef | None:
        return self._evictable(self._tiers.id_on_host(place))

    def _evictable(self, snapshot_id: int | None) -> SnapshotRef | None:
        if snapshot_id is None or self._pins[snapshot_id] or self._state[snapshot_id] is not SnapshotState.PUBLISHED:
            return None
        return self.ref(snapshot_id)

    # -- checks ---------------------------------------------------------------------------------------------------------------
    def check(self, published: set[int], pins: dict[int, int]) -> None:
        """Compares with the snapshots the tree has and the pins of live leases (snapshot -> count; joiners may have more)."""
        free = set(self._free)
        assert len(free) == len(self._free), "a snapshot is in the free list twice"
        self._tiers.check(snapshot_id for snapshot_id in range(len(self._state)) if snapshot_id not in free)
        for snapshot_id in range(len(self._state)):
            state = self._state[snapshot_id]
            assert (state is SnapshotState.FREE) == (snapshot_id in free), (
                f"snapshot {snapshot_id} is {state.value} and free list says {snapshot_id in free}"
            )
            assert (state is SnapshotState.PUBLISHED) == (snapshot_id in published), (
                f"snapshot {snapshot_id} is {state.value}, in tree: {snapshot_id in published}"
            )
            assert self._pins[snapshot_id] >= pins.get(snapshot_id, 0), (
                f"snapshot {snapshot_id}: {self._pins[snapshot_id]} pins counted, at least {pins.get(snapshot_id, 0)} expected"
            )
            assert state is not SnapshotState.FREE or not self._pins[snapshot_id], f"free snapshot {snapshot_id} is pinned"
            assert state is not SnapshotState.STRANDED or self._pins[snapshot_id], (
                f"stranded snapshot {snapshot_id} has no pin and is lost"
            )
            assert state not in (SnapshotState.RESERVED, SnapshotState.WRITTEN) or not self.on_host(snapshot_id), (
                f"snapshot {snapshot_id} is {state.value} and on the host, where no step can write it"
            )

    def _verify(self, ref: SnapshotRef) -> None:
        if self._generation[ref.snapshot_id] != ref.generation or self._state[ref.snapshot_id] is SnapshotState.FREE:
            raise StaleSnapshotError(f"{ref} is stale: the snapshot is at generation {self._generation[ref.snapshot_id]}")

    def _move(self, snapshot_id: int, state: SnapshotState) -> None:
        if state not in TRANSITIONS[self._state[snapshot_id]]:
            raise StaleSnapshotError(f"snapshot {snapshot_id} cannot go from {self._state[snapshot_id].value} to {state.value}")
        self._state[snapshot_id] = state

    def _set_free(self, snapshot_id: int) -> None:
        self._move(snapshot_id, SnapshotState.FREE)
        self._generation[snapshot_id] += 1
        self._tiers.remove(snapshot_id)
        self._free.append(snapshot_id)
