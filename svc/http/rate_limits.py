"""What the holder of a key may ask for in a minute and at once, and what is left of it. Plain functions; time is an argument."""

from collections.abc import Iterator
from dataclasses import dataclass

MINUTE_S = 60.0
RETRY_PARALLEL_S = 1.0  # when another request of the tenant ends nobody knows


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt tokens evaluated and tokens generated
    parallel_requests: int | None = None
    queue_share: float = 1.0  # of `max_queue`
    admin: bool = False  # whether it may do what concerns everybody: pin, flush


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Why a request must wait."""

    code: str  # a stable word for programs
    message: str
    retry_after_s: float


class Bucket:
    """Units that come back steadily, as many in a minute as it holds. More may be taken than is in it: it fills from below zero."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled_s = 0.0  # on the clock of the caller, which starts at 0 or later

    def fill(self, now: float) -> None:
        gained = max(0.0, now - self._filled_s) * self.per_minute / MINUTE_S
        self._level = min(float(self.per_minute), self._level + gained)
        self._filled_s = max(self._filled_s, now)

    def take(self, units: int) -> None:
        self._level -= units

    def seconds_to(self, level: float) -> float:
        """Until it has as many, if nothing is taken."""
        return max(0.0, level - self._level) * MINUTE_S / self.per_minute

    @property
    def remaining(self) -> int:
        """Whole units in it. A billionth is added: what has come back in many small parts is to count as whole."""
        return max(0, int(self._level + 1e-9))

    def change(self, per_minute: int) -> None:
        """Another limit: what is left stays, as far as it fits, and so does what is owed."""
        self.per_minute = per_minute
        self._level = min(self._level, float(per_minute))


class Tenant:
    """The holder of the keys of one name. Owner of the count of what it has used."""

    def __init__(self, name: str, limits: Limits = NO_LIMITS) -> None:
        self.name = name
        self.limits = limits
        self.num_running = 0
        self._requests = _bucket(limits.requests_per_minute)
        self._tokens = _bucket(limits.tokens_per_minute)

    def enter(self, now: float) -> OverLimit | None:
        """Counts a request, of which the caller must tell the end by `leave`; or says what is against it, and counts nothing."""
        over = self._over_limit(now)
        if over is None:
            self.num_running += 1
            if self._requests is not None:
                self._requests.take(1)
        return over

    def leave(self) -> None:
        self.num_running -= 1

    def charge(self, tokens: int, now: float) -> None:
        """Tokens that answers have cost, once that is known: a long answer makes the next request wait."""
        if self._tokens is not None:
            self._tokens.fill(now)
            self._tokens.take(tokens)

    def _over_limit(self, now: float) -> OverLimit | None:
        parallel = self.limits.parallel_requests
        if parallel is not None and self.num_running >= parallel:
            message = f"This key may have {parallel} requests at once, and that many are running."
            return OverLimit("parallel_requests", message, RETRY_PARALLEL_S)
        for unit, bucket in self._buckets():
            bucket.fill(now)
            if bucket.remaining < 1:
                message = f"This key may use {bucket.per_minute} {unit} a minute, and they are used up."
                return OverLimit(f"{unit}_per_minute", message, bucket.seconds_to(1.0))
        return None

    def _buckets(self) -> Iterator[tuple[str, Bucket]]:
        if self._requests is not None:
            yield "requests", self._requests
        if self._tokens is not None:
            yield "tokens", self._tokens

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's, for each limit of a minute that there is."""
        headers = {}
        for unit, bucket in self._buckets():
            bucket.fill(now)
            headers[f"x-ratelimit-limit-{unit}"] = str(bucket.per_minute)
            headers[f"x-ratelimit-remaining-{unit}"] = str(bucket.remaining)
            headers[f"x-ratelimit-reset-{unit}"] = spoken(bucket.seconds_to(bucket.per_minute))
        return headers

    def limit(self, limits: Limits) -> None:
        """From now on other limits; what it has left stays, as far as it fits."""
        self._requests = _changed(self._requests, limits.requests_per_minute)
        self._tokens = _changed(self._tokens, limits.tokens_per_minute)
        self.limits = limits

    def __repr__(self) -> str:
        return f"<Tenant {self.name!r}: {self.num_running} running, {self.limits}>"


HEADERS = tuple(f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset"))


def _bucket(per_minute: int | None) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute)


def _changed(bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
    if bucket is None or per_minute is None:
        return _bucket(per_minute)
    bucket.change(per_minute)
    return bucket


def spoken(seconds: float) -> str:
    """A duration as OpenAI's headers have it: "120ms", "7.66s", "6m0s"."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
