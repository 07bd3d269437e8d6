"""`num_available_pages` is exact: admission may promise every page it counts, and no sequence ever gets more.

Random texts that branch in mid-page, pinned snapshots anywhere on them and live leases among them; then all that is available is
taken, by one lease or by several.
"""

import random

import pytest

from svc.memory.lease import COLD, Lease
from svc.memory.prefix_tree import PrefixTree
from svc.memory.sequence_cache import SequenceCache, SnapshotRef
from svc.memory.tokens import FixedTokens
from tests.memory.device_model import GrowingTokens, Prefix, small_plan

KINDS = [(hybrid, host) for hybrid in (True, False) for host in (False, True)]
IDS = [f"{'hybrid' if hybrid else 'attention'}{'-two-tiers' if host else ''}" for hybrid, host in KINDS]


class Trace:
    """Sequences, pins and leases at random, as one seed draws them."""

    def __init__(self, seed: int, *, hybrid: bool, host: bool) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([2, 3, 4, 8])
        self.cache = SequenceCache(
            small_plan(
                pages=self.random.randint(12, 40),
                rows=6,
                snapshots=self.random.randint(4, 12),
                page_tokens=self.size,
                hybrid=hybrid,
                host_pages=self.random.randint(0, 20) if host else 0,
                host_snapshots=self.random.randint(0, 6) if host else 0,
            )
        )
        self.texts: list[Prefix] = [tuple(self.random.choices(range(100), k=20))]
        self.leases: list[tuple[Lease, GrowingTokens]] = []
        self.pins: list[SnapshotRef] = []
        self.now = 0.0
        self.num_moves = 0

    def run(self, operations: int) -> None:
        for _ in range(operations):
            self.now += self.random.choice([0.0, 1.0, 100.0])
            what = self.random.random()
            if what < 0.55:
                self.talk()
            elif what < 0.75:
                self.pin()
            elif what < 0.85 and self.pins:
                self.cache.unpin(self.pins.pop(self.random.randrange(len(self.pins))))
            elif self.leases:
                lease, source = self.leases.pop(self.random.randrange(len(self.leases)))
                self.cache.close(lease, min(len(source.tokens), lease.table.end), self.now)
            self.cache.check()

    def draw_text(self) -> Prefix:
        """A known text, cut anywhere and gone on with; or a new one."""
        known = self.random.choice(self.texts)
        kept = known[: self.random.choice([0, *range(len(known)), len(known)])]
        text = kept + tuple(self.random.choices(range(100), k=self.random.randint(1, 16)))
        self.texts.append(text)
        return text

    def talk(self) -> None:
        """A prompt evaluated in one step and captured where it pleases; its lease may stay."""
        source = GrowingTokens(self.draw_text())
        end = len(source.tokens)
        available, resume = self.cache.num_available_pages(), self.cache.match(source.tokens)
        wanted = self.cache.num_pages_to_pin(source, resume)
        lease = self.cache.open(source, resume, self.now)
        if lease is None:
            assert wanted > available or len(self.leases) == 6
            return
        assert self.cache.num_available_pages() == available - wanted
        self.step([])
        if not self.cache.extend(lease, end, self.now):
            self.cache.close(lease, 0, self.now)
            return
        positions = {end, *self.random.choices(range(1, end + 1), k=self.random.randint(0, 3))}
        captures = [self.cache.reserve(lease, p, self.now) for p in sorted(positions) if p > lease.start]
        self.step([lease], captures)
        if self.random.random() < 0.25:
            self.leases.append((lease, source))
        else:
            self.cache.close(lease, end, self.now)

    def step(self, leases: list[Lease], captures: list | None = None) -> None:  # type: ignore[type-arg]
        step = self.cache.begin(leases, [capture for capture in captures or [] if capture is not None])
        self.num_moves += len(step.moves)
        self.cache.finish(step, self.now, self.num_moves)

    def pin(self) -> None:
        """Of all texts, those whose resume points are deep inside others included."""
        text = self.random.choice(self.texts)
        resume = self.cache.match(text[: self.random.randint(1, len(text))])
        if resume.snapshot is not None:
            self.cache.pin(resume.snapshot)
            self.pins.append(resume.snapshot)

    # -- taking all that is available -------------------------------------------------------------------------------------------
    def takers(self) -> list[Lease]:
        """Live leases that have made their shared pages their own, and a new one."""
        owners = [lease for lease, _ in self.leases if self.cache.extend(lease, lease.start + 1, self.now)]
        new = self.cache.open((), COLD, self.now)
        return [*owners, new] if new is not None else owners

    def take_all(self) -> None:
        takers = self.takers()
        self.random.shuffle(takers)
        takers = takers[: self.random.randint(1, 3)]
        for taker in takers:
            left = self.cache.num_available_pages()
            share = left if taker is takers[-1] else self.random.randint(0, left)
            self.take(taker, share)
        assert not takers or self.cache.num_available_pages() == 0

    def take(self, lease: Lease, share: int) -> None:
        available, held = self.cache.num_available_pages(), lease.table.end
        before = lease.table.pages.tolist()
        assert not self.cache.extend(lease, held + available * self.size + 1, self.now), "a page more than there is"
        assert lease.table.pages.tolist() == before
        assert self.cache.extend(lease, held + share * self.size, self.now), f"{share} of {available} pages refused"
        assert self.cache.num_available_pages() == available - share
        self.cache.check()


@pytest.mark.parametrize(("hybrid", "host"), KINDS, ids=IDS)
def test_everything_available_can_be_taken(hybrid: bool, host: bool) -> None:
    """Whatever is cached, pinned and live: leases extend to exactly `num_available_pages` together, and to no page more."""
    for seed in range(40):
        trace = Trace(seed, hybrid=hybrid, host=host)
        trace.run(operations=30)
        trace.take_all()


def test_traces_reach_superseded_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traces above do come to the last resort: pages that only the snapshot of an inner node keeps, under pinned leaves."""
    found = []
    original = PrefixTree.find_superseded
    monkeypatch.setattr(PrefixTree, "find_superseded", lambda tree: found.append(original(tree)) or found[-1])
    for seed in range(40):
        trace = Trace(seed, hybrid=True, host=False)
        trace.run(operations=30)
        trace.take_all()
    assert found
    assert None not in found


def test_chat_on_a_small_budget_can_be_finished() -> None:
    """By hand: on 16 pages of 16 tokens one conversation grows, each turn answered twice; then the longest prompt that
    fits comes, alone, and gets every page although the snapshot it resumes from is pinned."""
    size, pages = 16, 16
    cache = SequenceCache(small_plan(pages=pages, rows=1, snapshots=32, page_tokens=size))
    prompt = tuple(range(1000, 1000 + size * pages))
    for length in range(20, 101, 16):
        for text in (prompt[:length], (*prompt[:length], 7)) if length < 100 else (prompt[:length],):
            lease = cache.open(text, cache.match(text), 0.0)
            assert lease is not None
            assert cache.extend(lease, len(text), 0.0)
            capture = cache.reserve(lease, len(text), 0.0)
            assert capture is not None
            cache.finish(cache.begin([lease], [capture]), 0.0)
            cache.close(lease, len(text), 0.0)
            cache.check()
    resume = cache.match(prompt)
    assert resume.position == 100
    assert cache.num_pages_to_pin(FixedTokens.of(prompt), resume) == 7
    lease = cache.open(prompt, resume, 0.0)
    assert lease is not None
    assert cache.num_available_pages() == pages - 7
    assert cache.extend(lease, size * pages, 0.0)
    cache.close(lease, 0, 0.0)
    cache.check()
