"""How many prompt tokens a step may carry, and who gets them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.slots.budget import FIRST_CHUNK_TOKENS, LONE_STEP_S, MIN_CHUNK_TOKENS, ChunkBudget, share_prefill


def test_without_streams_a_step_is_full_on_a_fast_device() -> None:
    """Nobody waits for a token: the whole step is prefill, as long as it stays short."""
    budget = ChunkBudget(512, max_step_s=0.1)
    budget.observe(64, 0, duration_s=0.05)
    assert budget.tokens(0) == 512


def test_without_streams_a_step_is_bounded_on_a_slow_device() -> None:
    """A cancel, a cached request and the watchdog wait for at most about LONE_STEP_S, from the first step on."""
    budget = ChunkBudget(512, max_step_s=0.1)
    assert budget.tokens(0) == FIRST_CHUNK_TOKENS
    budget.observe(64, 0, duration_s=64 * 0.02)
    assert budget.tokens(0) == int(LONE_STEP_S / 0.02)


def test_prefill_does_not_crawl_beside_slow_streams() -> None:
    """Decoding alone takes longer than the bound: prefill gets as much time again, not the bare minimum."""
    budget = ChunkBudget(512, max_step_s=0.1)
    for _ in range(60):
        budget.observe(0, 4, duration_s=0.3)
    budget.observe(64, 0, duration_s=0.064)
    assert budget.tokens(4) == pytest.approx(300, abs=5)


@pytest.mark.parametrize("token_s", [1e-5, 1e-4, 1e-3])
def test_beside_streams_a_step_takes_about_its_time(token_s: float) -> None:
    """After some steps of known speed, the predicted step time is within the bound, and close to it where that is possible."""
    budget = ChunkBudget(4096, max_step_s=0.1)
    for _ in range(50):
        budget.observe(0, 2, duration_s=0.02)
    for _ in range(50):
        tokens = budget.tokens(2)
        budget.observe(tokens, 2, duration_s=0.02 + tokens * token_s)
    took = 0.02 + budget.tokens(2) * token_s
    assert took <= 0.1 + MIN_CHUNK_TOKENS * token_s
    assert took >= 0.09 or budget.tokens(2) == 4094


def test_a_slow_device_still_moves() -> None:
    """However long a step takes, a prefill gets MIN_CHUNK_TOKENS."""
    budget = ChunkBudget(512, max_step_s=0.1)
    budget.observe(16, 1, duration_s=100.0)
    assert budget.tokens(1) == MIN_CHUNK_TOKENS


@given(st.lists(st.integers(1, 5000), max_size=9), st.integers(1, 2048))
def test_shares(remaining: list[int], budget: int) -> None:
    """Nothing is wasted, nobody gets more than is left, the oldest gets at least half the budget or all it needs."""
    shares = share_prefill(remaining, budget)
    assert sum(shares) == min(budget, sum(remaining))
    assert all(0 <= share <= most for share, most in zip(shares, remaining, strict=True))
    if remaining:
        assert shares[0] >= min(remaining[0], budget // 2)


def test_short_before_long() -> None:
    """Behind the oldest, the shortest goes first."""
    assert share_prefill([1000, 900, 10], 100) == [50, 40, 10]
