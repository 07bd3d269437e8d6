"""Refusing the fields that nothing here does: silently ignoring them would be worse than an error.

Their values are kept as raw JSON until they are looked at, so that a large one is refused before anything is built from it.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from svc.http.fields import unsupported
from svc.http.known_fields import Neutral, Route, refused_on

_MAX_NEUTRAL_BYTES = 256  # a longer value asks for something
_REFUSED = {route: refused_on(route) for route in Route}


def with_refused_fields(kind: type[Struct], route: Route) -> type[Struct]:
    """A Struct like `kind` that also keeps the fields that `route` refuses, for `refuse_unsupported`."""
    fields: list[tuple[str, Any, Any]] = [(name, Raw | UnsetType, UNSET) for name in refused_on(route)]
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), kw_only=True)


def refuse_unsupported(body: Struct, route: Route) -> None:
    """RequestError for the first field that asks for something that is not supported. `body` is of `with_refused_fields`."""
    for name, unless in _REFUSED[route].items():
        raw = getattr(body, name)
        if raw is not UNSET and not _asks_for_nothing(value := bytes(raw), unless):
            raise unsupported(name, value[:_MAX_NEUTRAL_BYTES].decode(errors="replace"))


def _asks_for_nothing(raw: bytes, unless: Neutral) -> bool:
    if len(raw) > _MAX_NEUTRAL_BYTES:
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # a number that is out of every range
        return False
    return value is None or unless.holds(value)
