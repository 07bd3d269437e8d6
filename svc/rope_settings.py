"""The settings of a context beyond the one that a model was trained for: a part of `svc.config.Config`."""

from typing import Annotated, Literal

from msgspec import Meta

from svc.disk_settings import DiskSettings


class RopeSettings(DiskSettings, frozen=True, kw_only=True):
    """Each setting's type, default, range and help, as in Config."""

    rope_scaling: Annotated[
        Literal["auto", "none", "linear", "yarn"],
        Meta(description="how positions are stretched for a longer context; auto: as the model file says"),
    ] = "auto"
    rope_scale: Annotated[
        float, Meta(ge=0, le=4096, description="factor that the context is stretched by; 0: as the model file says")
    ] = 0.0
    rope_freq_base: Annotated[
        float, Meta(ge=0, le=1e12, description="base of the rotary frequencies; 0: as the model file says")
    ] = 0.0
    yarn_orig_ctx: Annotated[
        int, Meta(ge=0, le=2**24, description="tokens the model was trained for before stretching; 0: as the model file says")
    ] = 0
    yarn_ext_factor: Annotated[
        float, Meta(ge=-1, le=16, description="YaRN's mix: 1 keeps fast frequencies, 0 stretches all; -1: as the model file says")
    ] = -1.0
    yarn_attn_factor: Annotated[
        float, Meta(ge=-1, le=16, description="factor on YaRN's correction of magnitudes; -1: as the model file says")
    ] = -1.0
    yarn_beta_slow: Annotated[
        float, Meta(ge=-1, le=4096, description="YaRN: turns below which a frequency is stretched; -1: as the model file says")
    ] = -1.0
    yarn_beta_fast: Annotated[
        float, Meta(ge=-1, le=4096, description="YaRN: turns above which a frequency is kept; -1: as the model file says")
    ] = -1.0
