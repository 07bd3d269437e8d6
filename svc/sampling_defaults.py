"""The settings that say how answers are sampled where a request does not: a part of `svc.config.Config`.

Each is named as the request field with `default_` before it, and takes the field's values.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

PREFIX = "default_"
_AS_THE_API = "where a request does not say; unset: each API's own"

Probability = Annotated[float, Meta(ge=0, le=1)] | None
Penalty = Annotated[float, Meta(ge=-100, le=100)] | None


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves each API its own default."""

    default_temperature: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description=f"temperature {_AS_THE_API}", examples=[0.7])
    ] = None
    default_top_k: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None, Meta(description=f"top_k {_AS_THE_API}; 0: off", examples=[40])
    ] = None
    default_top_p: Annotated[Probability, Meta(description=f"top_p {_AS_THE_API}", examples=[0.95])] = None
    default_min_p: Annotated[Probability, Meta(description=f"min_p {_AS_THE_API}", examples=[0.05])] = None
    default_typical_p: Annotated[Probability, Meta(description=f"typical_p {_AS_THE_API}", examples=[1.0])] = None
    default_repeat_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100)] | None, Meta(description=f"repeat_penalty {_AS_THE_API}", examples=[1.1])
    ] = None
    default_repeat_last_n: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None, Meta(description=f"repeat_last_n {_AS_THE_API}; -1: all", examples=[64])
    ] = None
    default_presence_penalty: Annotated[Penalty, Meta(description=f"presence_penalty {_AS_THE_API}", examples=[0.0])] = None
    default_frequency_penalty: Annotated[Penalty, Meta(description=f"frequency_penalty {_AS_THE_API}", examples=[0.0])] = None
    default_seed: Annotated[
        Annotated[int, Meta(ge=-1, le=2**53 - 1)] | None,
        Meta(description="seed where a request does not say; unset, -1: every request draws its own", examples=[42]),
    ] = None
    default_max_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=2**24)] | None,
        Meta(description=f"max_tokens {_AS_THE_API}; -1: until the context is full", examples=[4096]),
    ] = None

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """Those that are set, by the name of the request field."""
        values = {name.removeprefix(PREFIX): getattr(self, name) for name in SamplingDefaults.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}
