"""GET /openapi.json: the routes, the bodies that they take and their errors, from the table of routes and its Structs."""

import re
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from svc.http.errors import speaks_anthropic
from svc.http.schema import JsonObject

DOCUMENT = web.AppKey("openapi", bytes)
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


class ErrorBody(Struct):
    """`param` names the field at fault, `code` is a word for programs. The numbers come with a prompt that does not fit."""

    message: str
    type: str
    param: str | None
    code: str | int | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class Error(Struct):
    """Every refusal and failure."""

    error: ErrorBody


class AnthropicErrorBody(Struct):
    type: str
    message: str


class AnthropicError(Struct):
    """Every refusal and failure on Anthropic's routes."""

    type: str
    error: AnthropicErrorBody
    request_id: str | None = None


class Described(Protocol):
    """The part of a route that is described."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def handler(self) -> Any: ...
    @property
    def public(self) -> bool: ...
    @property
    def body(self) -> type[Struct] | None: ...
    @property
    def answer(self) -> Any: ...
    @property
    def streams(self) -> bool: ...


def document(routes: Iterable[Described]) -> bytes:
    """As JSON."""
    routes = list(routes)
    kinds = list(dict.fromkeys(kind for route in routes for kind in (route.body, route.answer) if kind not in (None, str)))
    found, components = msgspec.json.schema_components([*kinds, Error, AnthropicError], ref_template=_REF)
    schemas = dict(zip(kinds, found, strict=False))
    paths: dict[str, JsonObject] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    keys = {"bearer": {"type": "http", "scheme": "bearer"}, "header": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
    out: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": "1", "description": "Unknown fields of requests are ignored."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": keys},
        "security": [{"bearer": []}, {"header": []}, {}],
    }
    return msgspec.json.encode(out)


def _operation(route: Described, path: str, schemas: dict[Any, JsonObject]) -> JsonObject:
    error = AnthropicError if speaks_anthropic(path) else Error
    failure = {"description": "An error", "content": _json({"$ref": _REF.format(name=error.__name__)})}
    answers = {} if route.answer is None else {"200": {"description": "The answer", "content": _answer(route, schemas)}}
    operation: JsonObject = {
        "operationId": "_".join(filter(None, (route.method.lower(), *re.split(r"\W+", path)))),
        "responses": {**answers, "4XX": failure, "5XX": failure},
    }
    if summary := (route.handler.__doc__ or "").partition("\n")[0]:
        operation["summary"] = summary
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(schemas[route.body])}
    if route.public:
        operation["security"] = []
    return operation


def _answer(route: Described, schemas: dict[Any, JsonObject]) -> JsonObject:
    if route.answer is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    streamed: JsonObject = {"text/event-stream": {}} if route.streams else {}
    return _json(schemas[route.answer]) | streamed


def _json(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}
