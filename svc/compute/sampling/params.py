"""How a token is chosen: plain numbers, already checked at the edge."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature == 0` is greedy (lowest id wins a tie). `top_k == 0`, `top_p == 1`, `min_p == 0` are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None  # None: no log probabilities wanted; n: the n best beside the sampled one's
