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


def document(routes: Iterable[Described]) -> bytes:
    """As JSON."""
    routes = list(routes)
    kinds = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    schemas, components = msgspec.json.schema_components([*kinds, Error, AnthropicError], ref_template=_REF)
    bodies = dict(zip(kinds, schemas, strict=False))
    paths: dict[str, JsonObject] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, bodies)
    keys = {"bearer": {"type": "http", "scheme": "bearer"}, "header": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
    out: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": "1", "description": "Unknown fields of requests are ignored."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": keys},
        "security": [{"bearer": []}, {"header": []}, {}],
    }
    return msgspec.json.encode(out)


def _operation(route: Described, path: str, bodies: dict[type[Struct], JsonObject]) -> JsonObject:
    error = AnthropicError if speaks_anthropic(path) else Error
    failure = {"description": "An error", "content": _json({"$ref": _REF.format(name=error.__name__)})}
    operation: JsonObject = {
        "operationId": "_".join(filter(None, (route.method.lower(), *re.split(r"\W+", path)))),
        "responses": {"200": {"description": "The answer"}, "4XX": failure, "5XX": failure},
    }
    if summary := (route.handler.__doc__ or "").partition("\n")[0]:
        operation["summary"] = summary
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(bodies[route.body])}
    if route.public:
        operation["security"] = []
    return operation


def _json(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}
