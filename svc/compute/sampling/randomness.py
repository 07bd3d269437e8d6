"""One uniform number per sampled token, a pure function of (seed, choice, position).

There is no generator state: the same request draws the same numbers after preemption, rollback and in any batch.
"""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: splitmix64's increment


def _mix(x: int) -> int:
    """splitmix64's finaliser: a bijection of 64-bit numbers in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, choice: int, position: int, *purpose: int) -> float:
    """A number in [0, 1) with 53 random bits. Any integers; `seed` counts modulo 2^64. Each `purpose` has its own, and none too."""
    state = 0
    for word in (seed, choice, position, *purpose):
        # Mixing after each word keeps (1, 0) and (0, 1) apart; the increment keeps zeros from staying zero.
        state = _mix((state + word * _GOLDEN + _GOLDEN) & _MASK)
    return (state >> 11) * 2.0**-53
