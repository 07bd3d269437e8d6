"""What a snapshot or a cached leaf is worth, and the moving hand that looks for a cheap one. Plain functions, no state.

The worth of a snapshot is the work it would save, spread over its age:

    worth = (work(position) - work(shallower)) / (RECENT_S + age_s)         all snapshots have the same size in bytes
    work(n) = n + n^2 / (2 * EVEN_TOKENS)                                    in units of one token's matrix work

`shallower` is the next shallower snapshot on its path (0 without one): what a resume would fall back to. The quadratic term is
attention, whose cost per token grows with the position and equals the rest of the model at about EVEN_TOKENS. Dividing by the
age estimates how soon it is used again: what was used a minute ago is a minute from its next use. A leaf's pages are weighed the
same way, per page.
"""

from collections.abc import Callable

EVEN_TOKENS = 32_768  # hybrids with one attention layer in four; only the order of candidates depends on it
RECENT_S = 10.0  # below this age all are equally fresh, so that a burst of requests is judged by work alone
WINDOW = 64  # candidates one sweep looks at: enough to be near the cheapest, few enough for the middle of a step


def work(tokens: int) -> float:
    """Cost of evaluating positions [0, tokens)."""
    return tokens + tokens * tokens / (2 * EVEN_TOKENS)


def worth(position: int, shallower: int, age_s: float) -> float:
    """What a resume point at `position` is worth when the next best one is `shallower`."""
    return (work(position) - work(shallower)) / (RECENT_S + max(age_s, 0.0))


def sweep(hand: int, count: int, worth_of: Callable[[int], float | None]) -> tuple[int | None, float, int]:
    """The cheapest of the next WINDOW indices behind `hand` in a ring of `count`; goes on until it finds one or has seen all.

    `worth_of(index)` is None for what must stay. Returns (index or None, its worth, number of indices looked at).
    """
    best, best_worth, looked = None, 0.0, 0
    while looked < count and (looked < WINDOW or best is None):
        index = (hand + looked) % count
        looked += 1
        value = worth_of(index)
        if value is not None and (best is None or value < best_worth):
            best, best_worth = index, value
    return best, best_worth, looked
