"""Request bodies made into Structs: bounded before anything is built, and with the path of the field at fault in every error."""

import gc
import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from svc.errors import RequestError
from svc.http.anthropic.schema import MessagesIn
from svc.http.json_scan import check_weight
from svc.http.known_fields import Route
from svc.http.refusal import refuse_unsupported, with_refused_fields
from svc.http.responses.schema import ResponsesIn
from svc.http.schema import ApplyTemplateIn, ChatIn, CompletionIn, DetokenizeIn, InfillIn, NativeIn, PinIn, SlotFileIn, TokenizeIn
from svc.http.text.json_escapes import well_formed_json

REQUESTS: tuple[type[Struct], ...] = (
    ChatIn,
    CompletionIn,
    NativeIn,
    InfillIn,
    ApplyTemplateIn,
    TokenizeIn,
    DetokenizeIn,
    MessagesIn,
    ResponsesIn,
    SlotFileIn,
    PinIn,
)

In = TypeVar("In", bound=Struct)

ROUTES: dict[type[Struct], Route] = {
    ChatIn: Route.CHAT,
    CompletionIn: Route.TEXT,
    InfillIn: Route.NATIVE,  # the same fields, and its own
    NativeIn: Route.NATIVE,
    ApplyTemplateIn: Route.TEMPLATE,
    MessagesIn: Route.ANTHROPIC,
    ResponsesIn: Route.RESPONSES,
}
_WITH_REFUSED = {kind: with_refused_fields(kind, route) for kind, route in ROUTES.items()}

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


def decode(kind: type[In], body: bytes | bytearray) -> In:
    """A request body as a Struct; RequestError with the path of the field at fault. Lone surrogates become U+FFFD."""
    value: In = _decoded(_WITH_REFUSED.get(kind, kind), body)
    if kind in ROUTES:
        refuse_unsupported(value, ROUTES[kind])
    return value


def _decoded(kind: Any, body: bytes | bytearray) -> Any:
    check_weight(body)
    try:
        return _built(kind, well_formed_json(body))
    except msgspec.ValidationError as error:
        raise _request_error(str(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _not_json(body, error) from None


def _built(kind: Any, body: bytes | bytearray) -> Any:
    """Decodes without the garbage collector: nothing is garbage yet, and finding that out would take longer than decoding."""
    gc.disable()
    try:
        return msgspec.json.decode(body, type=kind)
    finally:
        gc.enable()


def _not_json(body: bytes | bytearray, error: Exception) -> RequestError:
    """Whatever the decoder says of a text that is no JSON."""
    if not body or body.isspace():
        return RequestError("The request body is empty; a JSON object is expected.")
    if isinstance(error, RecursionError):
        return RequestError("The request body is nested too deeply.", code="invalid_json")
    return RequestError(f"The request body is not valid JSON: {str(error)[:200]}.", code="invalid_json")


def _request_error(message: str) -> RequestError:
    at = _AT.search(message)
    path = at["path"] if at else ""
    missing = _MISSING.search(message)
    if missing:
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return RequestError(f"{param} is required.", param=param, code="missing_field")
    text = message[: at.start()] if at else message
    return RequestError(f"{path or 'The request body'}: {text}.", param=path or None, code="invalid_type")
