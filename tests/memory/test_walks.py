"""What planning costs in the prefix tree: how often it is walked, and how many tokens each walk follows."""

from collections.abc import Iterator

import pytest

from svc.memory.lease import Lease, ResumePoint
from svc.memory.prefix_tree import Node, PrefixTree, Walk
from svc.memory.sequence_cache import SequenceCache
from svc.memory.tokens import FixedTokens, TokenArray
from tests.memory.device_model import small_plan

STEM, KNOWN, LENGTH = 1_000, 1_200, 1_600


class Compared:
    """Tokens that walks have followed below their starting nodes since the last call of `take`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        walk = PrefixTree.walk

        def counted(tree: PrefixTree, tokens: TokenArray, base: Node | None = None) -> Walk:
            found = walk(tree, tokens, base)
            self._count += found.matched - found.base.end
            return found

        monkeypatch.setattr(PrefixTree, "walk", counted)

    def take(self) -> int:
        count, self._count = self._count, 0
        return count


@pytest.fixture
def cache() -> Iterator[SequenceCache]:
    """Knows 1,200 tokens of the prompt below, and a snapshot after 1,000 of them."""
    made = SequenceCache(small_plan(pages=1_000, rows=4, snapshots=100, page_tokens=16))
    publish(made, [*range(KNOWN), 90_000], [STEM, KNOWN + 1])
    yield made
    made.check()


@pytest.fixture
def compared(cache: SequenceCache, monkeypatch: pytest.MonkeyPatch) -> Compared:
    return Compared(monkeypatch)


def publish(cache: SequenceCache, tokens: list[int], positions: list[int]) -> None:
    lease = cache.open(tokens, cache.match(tokens), 0.0)
    assert lease is not None
    capture(cache, lease, positions)
    cache.close(lease, len(tokens), 0.0)


def capture(cache: SequenceCache, lease: Lease, positions: list[int]) -> None:
    """One step that captures all of them."""
    assert cache.extend(lease, positions[-1], 0.0)
    captures = [cache.reserve(lease, position, 0.0) for position in positions]
    taken = [reservation for reservation in captures if reservation is not None]
    assert len(taken) == len(positions)
    cache.finish(cache.begin([lease], taken), 0.0)


def num_walks(cache: SequenceCache) -> int:
    return cache.stats().counters.num_walks


@pytest.mark.parametrize("num_captures", [0, 1, 4])
def test_walks_of_a_prompt(cache: SequenceCache, num_captures: int) -> None:
    """One to match, which `open` and admission use again, and two for each capture: one to reserve it, one to publish it."""
    source = FixedTokens.of(range(LENGTH))
    before = num_walks(cache)
    resume = cache.match(source.array)
    assert cache.num_pages_to_pin(source, resume) == -(-STEM // 16)
    lease = cache.open(source, resume, 0.0)
    assert lease is not None
    positions = list(range(LENGTH - num_captures + 1, LENGTH + 1))
    if positions:
        capture(cache, lease, positions)
    cache.close(lease, LENGTH if positions else STEM, 0.0)
    assert num_walks(cache) - before == 1 + 2 * num_captures


def test_walks_of_an_attention_only_prompt() -> None:
    """Closing makes all that was written known: one walk more."""
    cache = SequenceCache(small_plan(pages=1_000, rows=4, snapshots=100, page_tokens=16, hybrid=False))
    publish(cache, [*range(KNOWN), 90_000], [KNOWN + 1])
    before = num_walks(cache)
    publish(cache, list(range(LENGTH)), [LENGTH])
    assert num_walks(cache) - before == 1 + 2 + 1
    cache.check()


def test_walks_begin_at_the_anchor(cache: SequenceCache, compared: Compared) -> None:
    """After the match nothing before the deepest snapshot on the lease's own path is compared again."""
    resume: ResumePoint = cache.match(range(LENGTH))
    assert (resume.position, resume.matched_tokens) == (STEM, KNOWN)
    assert compared.take() == KNOWN
    lease = cache.open(range(LENGTH), resume, 0.0)
    assert lease is not None
    assert compared.take() == 0
    assert cache.extend(lease, LENGTH, 0.0)
    taken = []
    for position in (1_050, 1_150, 1_300, LENGTH):
        taken.append(cache.reserve(lease, position, 0.0))
        assert compared.take() <= min(position, KNOWN) - STEM
    captures = [reservation for reservation in taken if reservation is not None]
    assert len(captures) == 4
    anchor = STEM
    for reservation in captures:
        cache.finish(cache.begin([lease], [reservation]), 0.0)
        assert compared.take() <= max(min(reservation.position, KNOWN) - anchor, 0)
        anchor = reservation.position
    cache.close(lease, LENGTH, 0.0)


def test_captures_of_an_answer_compare_nothing(cache: SequenceCache, compared: Compared) -> None:
    """Beyond what the tree knows every walk ends where it begins, however long the sequence is."""
    publish(cache, list(range(LENGTH)), [LENGTH])
    tokens = list(range(LENGTH + 200))
    lease = cache.open(tokens, cache.match(tokens), 0.0)
    assert lease is not None
    compared.take()
    for position in range(LENGTH + 10, LENGTH + 200, 10):
        capture(cache, lease, [position])
        assert compared.take() == 0
    cache.close(lease, 0, 0.0)


def test_a_resume_point_that_is_no_longer_current_is_walked_again(cache: SequenceCache) -> None:
    """Another text published between `match` and `open` costs one walk more, and nothing else changes."""
    resume = cache.match(range(LENGTH))
    publish(cache, [5, 6, 7], [3])
    before = num_walks(cache)
    lease = cache.open(range(LENGTH), resume, 0.0)
    assert lease is not None
    assert lease.start == STEM
    assert num_walks(cache) - before == 1
    cache.close(lease, STEM, 0.0)


def test_a_waiting_prompt_is_matched_again_from_where_it_resumed(cache: SequenceCache, compared: Compared) -> None:
    """Whatever was published meanwhile, only tokens behind the snapshot are compared; once that is gone, all of them."""
    before = cache.match(range(LENGTH))
    compared.take()
    publish(cache, [5, 6, 7], [3])
    compared.take()
    assert cache.match(range(LENGTH), before) == before
    assert compared.take() == KNOWN - STEM
    publish(cache, list(range(STEM + 50)), [STEM + 50])
    compared.take()
    deeper = cache.match(range(LENGTH), before)
    assert (deeper.position, deeper.matched_tokens) == (STEM + 50, KNOWN)
    assert compared.take() == KNOWN - STEM
    cache.clear()
    assert cache.match(range(LENGTH), deeper).position == 0
