"""The settings of what is kept longer: on disk, or because the operator wants it. A part of `svc.config.Config`."""

from typing import Annotated, Literal

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
    isolate_keys: Annotated[
        bool,
        Meta(description="the holders of named API keys share nothing of the cache; then all their text is in memory only"),
    ] = False
    pin_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="memory that POST /cache/pin may keep; auto: a quarter of kv_bytes and snapshot_bytes", extra={"size": True}
        ),
    ] = "auto"
    slot_save_path: Annotated[
        str | None,
        Meta(
            description="folder for POST /slots/{id}?action=save and restore; unset: these are refused",
            examples=["/var/lib/headrace/slots"],
        ),
    ] = None
