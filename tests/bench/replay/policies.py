"""Other policies, as scorers of the same cache: LRU, llama-server's first-in-first-out with spacing, one that knows the future."""

from svc.memory.placement import WantedKind
from svc.memory.prefix_tree import Node
from svc.memory.scoring import Work
from svc.memory.tokens import TokenArray
from tests.bench.replay.traces import Trace, common

ALWAYS = float("inf")
WORK = Work(32_768.0)


class Silent:
    """A scorer that learns nothing."""

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None: ...

    def opened(self, node: Node | None, tokens: TokenArray, position: int, now: float) -> None: ...

    def lost(self, snapshot_id: int, heir: int | None, now: float | None) -> None: ...


class LeastRecentlyUsed(Silent):
    """Everything is captured; what was not used for longest goes, pages and snapshots alike."""

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        return ALWAYS

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        return node.last_use

    def pages(self, node: Node, num_freed: int, shallower: int, now: float) -> float:
        return node.last_use


class FirstInFirstOut(Silent):
    """The context checkpoints of llama-server (build 11434, `create_checkpoint` and its caller): within the last `NEAR_END` tokens
    of the prompt always, before that only more than `MIN_STEP` tokens behind the one before; the oldest goes when all are taken.

    The state that llama-server keeps in the slot itself is the answer's end here. Its checkpoints belong to a slot and go when
    another conversation takes that; here they are shared and found by their text, so that this is the better of the two.
    """

    NEAR_END = 512  # n_ubatch
    MIN_STEP = 8192  # --checkpoint-min-step

    def __init__(self) -> None:
        self._order: dict[int, int] = {}
        self._count = 0

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        near = len(tokens) - position < self.NEAR_END
        return ALWAYS if near or not shallower or position > shallower + self.MIN_STEP else None

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        return float(self._order[node.snapshot_id or 0])

    def pages(self, node: Node, num_freed: int, shallower: int, now: float) -> float:
        return self.snapshot(node, shallower, now)

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None:
        self._count += 1
        self._order[node.snapshot_id or 0] = self._count


class Clairvoyant:
    """Knows the whole trace. Keeps what saves most per second until its next use, and captures only what will be used.

    A snapshot's next use is the next request that begins with its text and for which nothing deeper is kept now. So it is Belady's
    rule weighted by the work saved (and per page, for pages): greedy, and no bound in the strict sense. The best possible order
    of evictions can only be better; it is not known how to find that for trees of this size.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._texts = [ask.prompt for ask in trace]
        self._kept: list[dict[int, int]] = [{} for _ in trace]  # by request: positions kept that it could resume at
        self._uses: dict[int, tuple[int, list[int]]] = {}  # by snapshot: its position, and the requests that begin with its text
        self._known: dict[tuple[int, bytes], list[int]] = {}
        self._first = 0

    def capture(self, tokens: TokenArray, position: int, shallower: int, kind: WantedKind, now: float) -> float | None:
        return self._value(position, self._requests(tokens[:position]), now, num_freed=1)

    def snapshot(self, node: Node, shallower: int, now: float) -> float:
        return self._value(*self._uses[node.snapshot_id or 0], now, num_freed=1)

    def pages(self, node: Node, num_freed: int, shallower: int, now: float) -> float:
        return self._value(*self._uses[node.snapshot_id or 0], now, num_freed=max(num_freed, 1))

    def published(self, node: Node, tokens: TokenArray, kind: WantedKind, now: float) -> None:
        requests = self._requests(tokens)
        self._uses[node.snapshot_id or 0] = len(tokens), requests
        for request in requests:
            kept = self._kept[request]
            kept[len(tokens)] = kept.get(len(tokens), 0) + 1

    def opened(self, node: Node | None, tokens: TokenArray, position: int, now: float) -> None: ...

    def lost(self, snapshot_id: int, heir: int | None, now: float | None) -> None:
        position, requests = self._uses.pop(snapshot_id)
        for request in requests:
            kept = self._kept[request]
            kept[position] -= 1
            if not kept[position]:
                del kept[position]

    def _value(self, position: int, requests: list[int], now: float, num_freed: int) -> float:
        for request in requests:
            arrival_s = self._trace[request].at_s
            if arrival_s < now:
                continue
            others = [kept for kept in self._kept[request] if kept != position]
            if max(others, default=0) > position:
                continue
            saved = WORK.between(max(others, default=0), position)
            return saved / (arrival_s - now + 0.01) / num_freed
        return 0.0

    def _requests(self, tokens: TokenArray) -> list[int]:
        """All requests that begin with these tokens, by arrival."""
        key = len(tokens), tokens.tobytes()[-4096:]
        if key not in self._known:
            length, texts = len(tokens), enumerate(self._texts)
            self._known[key] = [number for number, text in texts if len(text) >= length and common(text, tokens) == length]
        return self._known[key]
