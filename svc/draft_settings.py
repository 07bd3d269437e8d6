"""The settings of drafts: tokens proposed cheaply and checked by the model. A part of `svc.config.Config`."""

from typing import Annotated

from msgspec import Meta

from svc.sampling_defaults import SamplingDefaults


class DraftSettings(SamplingDefaults, frozen=True, kw_only=True):
    """Each setting's type, default, range and help, as in Config."""

    draft_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=32,
            description="most tokens of an answer proposed and checked in one step, where the text repeats itself and that pays; "
            "0: none, and no memory for it",
        ),
    ] = 0
