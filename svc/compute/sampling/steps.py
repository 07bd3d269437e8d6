"""Sampling steps that a request asks for beyond the usual chain, or in another order. `ordered.py` takes them."""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


class Step(enum.Enum):
    """One step, by llama-server's name."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TEMPERATURE = "temperature"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"


USUAL_ORDER = tuple(Step)
"""The order of requests that ask for none: that of chain.py, and the other steps where they fit in."""


@dataclass(frozen=True, slots=True, eq=False)
class Breakers:
    """Texts that no repeat reaches across, as tokens."""

    single: Int32  # ascending: the tokens that contain a whole one
    longer: tuple[tuple[Int32, tuple[int, ...]], ...] = ()  # (tokens that end with its beginning, ascending; tokens of the rest)

    @classmethod
    def none(cls) -> "Breakers":
        return cls(np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True)
class Dry:
    """Tokens that would make a repeat longer than `allowed_length` lose multiplier * base^(length - allowed_length)."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int  # tokens in which repeats are looked for; -1: all
    breakers: Breakers


@dataclass(frozen=True, slots=True)
class Mirostat:
    """Keeps the surprise of the tokens drawn near `tau` bits; `eta` is how fast it corrects."""

    version: int  # 1 or 2
    tau: float
    eta: float


@dataclass(frozen=True, slots=True)
class AdaptiveP:
    """Draws tokens whose probability is near `target` on average; `decay`: how long the average remembers."""

    target: float  # 0 to 1
    decay: float  # 0 to 0.99


@dataclass(frozen=True, slots=True)
class SamplingSteps:
    """The defaults change nothing. A step that is not in `order` is not taken."""

    order: tuple[Step, ...] = USUAL_ORDER
    top_n_sigma: float = 0.0  # 0: off
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0  # 0: the temperature is fixed
    dynatemp_exponent: float = 1.0
    min_keep: int = 1  # top_p, min_p, typical_p and XTC leave at least so many
    dry: Dry | None = None
    mirostat: Mirostat | None = None
    adaptive: AdaptiveP | None = None
    post_sampling_probs: bool = False  # log probabilities are those that the token was drawn by
