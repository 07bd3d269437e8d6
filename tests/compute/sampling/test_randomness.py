"""The counter-based numbers: uniform, independent along every counter, and pure."""

import numpy as np
import pytest

from svc.compute.sampling.randomness import uniform

COUNT = 1 << 16
# Named by the counter that runs; the others are constant.
SERIES = {
    "position": lambda i: uniform(42, 0, i),
    "seed": lambda i: uniform(i, 0, 100),
    "choice": lambda i: uniform(42, i, 100),
    "large seed": lambda i: uniform((1 << 63) + i, 3, 100),
}


@pytest.fixture(scope="module", params=SERIES)
def numbers(request: pytest.FixtureRequest) -> np.ndarray:
    return np.array([SERIES[request.param](i) for i in range(COUNT)])


def test_uniform(numbers: np.ndarray) -> None:
    """In [0, 1), evenly over 256 bins: chi-square within 6 standard deviations of its mean."""
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=256, range=(0, 1))[0]
    chi_square = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum()
    assert abs(chi_square - 255) < 6 * np.sqrt(2 * 255)


def test_low_bits_are_uniform_too(numbers: np.ndarray) -> None:
    """The lowest of the 53 bits are as good as the highest."""
    low = (numbers * 2.0**53).astype(np.uint64) & np.uint64(255)
    counts = np.bincount(low.astype(int), minlength=256)
    chi_square = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum()
    assert abs(chi_square - 255) < 6 * np.sqrt(2 * 255)


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbours_are_independent(numbers: np.ndarray, lag: int) -> None:
    """No correlation between a counter and the next ones."""
    correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
    assert abs(correlation) < 6 / np.sqrt(COUNT)


def test_counters_do_not_stand_in_for_each_other() -> None:
    """All of a grid of small counters give different numbers: (1, 0, 2) is not (0, 1, 2)."""
    grid = {uniform(seed, choice, position) for seed in range(30) for choice in range(30) for position in range(30)}
    assert len(grid) == 30**3


def test_zeros_are_counters_like_any_other() -> None:
    """The first token of an unseeded request draws no special number."""
    assert 0.001 < uniform(0, 0, 0) < 0.999


def test_any_integer_is_a_seed() -> None:
    """Negative and huge seeds count modulo 2^64."""
    assert uniform(-1, 0, 0) == uniform((1 << 64) - 1, 0, 0)
    assert uniform(1 << 64, 0, 0) == uniform(0, 0, 0)
    assert uniform(-1, 0, 0) != uniform(1, 0, 0)
