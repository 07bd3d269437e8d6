"""What was asked (`Request`, frozen) and what has been produced so far (`Sequence`, survives preemption)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from svc.compute.sampling.params import SamplingParams
from svc.memory.placement import Boundary


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One answer wanted: token ids in, token ids out. `n > 1` is n requests that differ in `choice`.

    `on_token` is the text side's look at every sampled token, called synchronously in `commit` before the next step is planned; it
    returns True when the answer must end there (a stop string). It must not raise or block.
    """

    id: str
    prompt: tuple[int, ...]  # at least one token
    max_tokens: int  # 0: evaluate the prompt only (warm the cache)
    params: SamplingParams
    choice: int = 0
    boundaries: tuple[Boundary, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # end the answer; the stop token itself is not part of it
    banned: tuple[int, ...] = ()  # never sampled (ignore_eos)
    use_cache: bool = True  # False: match nothing and join nobody; what is evaluated may still be kept
    priority: int = 0  # higher goes first
    on_token: Callable[[int], bool] | None = None
    arrival_s: float = field(default=0.0, compare=False)
