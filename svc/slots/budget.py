"""How many prompt tokens one step may carry, from how long steps have taken."""

MIN_CHUNK_TOKENS = 16  # a prefill always moves at least this much
FIRST_CHUNK_TOKENS = 64  # before the first step has been measured
LONE_STEP_S = 1.0  # a step nobody streams in: long enough to be efficient, short enough for cancels, cached requests and probes
SMOOTHING = 0.25  # weight of the newest step in the moving average


class ChunkBudget:
    """Prefill tokens per step, so that a step takes about `max_step_s` beside running streams, else at most LONE_STEP_S.

    Bits do not depend on chunking (cpu backend), so a clock may decide here. Owner: the scheduler.
    """

    def __init__(self, max_tokens: int, max_step_s: float) -> None:
        self.max_tokens = max_tokens
        self._max_step_s = max_step_s
        self._token_s: float | None = None  # seconds per prefill token, moving average
        self._decode_s = 0.0  # seconds of a step that only decodes

    @property
    def token_s(self) -> float | None:
        """Seconds per prefill token; None before the first step."""
        return self._token_s

    def tokens(self, num_decodes: int) -> int:
        """Prefill tokens allowed beside `num_decodes` decoding sequences."""
        room = max(1, self.max_tokens - num_decodes)
        if self._token_s is None:
            return min(room, FIRST_CHUNK_TOKENS)
        if num_decodes:
            # Where decoding alone takes longer than the bound, prefill gets as much time again: it must not crawl beside streams.
            spare_s = max(self._max_step_s, 2 * self._decode_s) - self._decode_s
        else:
            spare_s = max(LONE_STEP_S, self._max_step_s)
        return min(room, max(MIN_CHUNK_TOKENS, int(spare_s / self._token_s)))

    def observe(self, num_prefill: int, num_decodes: int, duration_s: float) -> None:
        """Learns from a finished step."""
        if num_prefill == 0:
            if num_decodes:
                self._decode_s += SMOOTHING * (duration_s - self._decode_s)
            return
        if num_prefill < MIN_CHUNK_TOKENS:
            return  # a few tokens say more about the step's fixed cost than about a token's
        token_s = max(duration_s - (self._decode_s if num_decodes else 0.0), 0.1 * duration_s) / num_prefill
        self._token_s = token_s if self._token_s is None else self._token_s + SMOOTHING * (token_s - self._token_s)


def share_prefill(remaining: list[int], budget: int) -> list[int]:
    """Divides a step's prefill tokens among sequences given oldest first.

    The oldest is sure of half, so nobody starves; the other half goes to the shortest first, so that a short prompt does not wait
    behind a long one; what is left over goes to the oldest again, then in order.
    """
    shares = [0] * len(remaining)
    if not remaining:
        return shares
    left = budget

    def give(index: int, most: int) -> None:
        nonlocal left
        tokens = min(remaining[index] - shares[index], most, left)
        shares[index] += tokens
        left -= tokens

    give(0, (budget + 1) // 2)
    for index in sorted(range(1, len(remaining)), key=lambda i: remaining[i]):
        give(index, left)
    for index in range(len(remaining)):
        give(index, left)
    return shares
