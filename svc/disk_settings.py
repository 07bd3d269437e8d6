"""The settings of the cache on disk: a part of `svc.config.Config`."""

from typing import Annotated

from msgspec import Meta

from svc.chat_settings import ChatSettings


class DiskSettings(ChatSettings, frozen=True, kw_only=True):
    """Each setting's type, default, range and help, as in Config."""

    cache_dir: Annotated[
        str | None,
        Meta(
            description="folder where the cache is kept, so that it survives a restart; one server each; unset: none",
            examples=["/var/cache/headrace"],
        ),
    ] = None
    cache_dir_bytes: Annotated[
        Annotated[int, Meta(ge=1)],
        Meta(description="disk space for cache_dir; what was of use least recently goes first", extra={"size": True}),
    ] = 16 << 30
    slot_save_path: Annotated[
        str | None,
        Meta(
            description="folder for POST /slots/{id}?action=save and restore; unset: these are refused",
            examples=["/var/lib/headrace/slots"],
        ),
    ] = None
