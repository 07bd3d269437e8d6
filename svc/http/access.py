"""Who may ask, and how much: API keys and their limits, and the origins whose pages a browser lets talk to us (CORS)."""

import re
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from svc.errors import ConfigError
from svc.http.api_keys import ApiKeys
from svc.http.errors import ApiError
from svc.http.middleware import SCOPE, scope_of
from svc.http.protocol import REFUSAL, TOO_MANY
from svc.http.rate_limits import HEADERS
from svc.http.routes import ROUTES

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
LOCALHOST = "localhost"  # in `cors_origins`: any port of this machine
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_PUBLIC = frozenset(route.path for route in ROUTES if route.public)
_ADMIN = frozenset(route.path for route in ROUTES if route.admin)
_EXPOSED = ", ".join(("X-Request-Id", "Retry-After", *HEADERS))
PREFLIGHT_S = 600  # how long a browser may remember that it asked


API_KEYS = web.AppKey("api_keys", ApiKeys)  # absent: everybody is let in, and has no limits
CLOCK: web.AppKey[Callable[[], float]] = web.AppKey("clock")


def is_public(request: web.Request) -> bool:
    """Whether the route is one of those that anybody may ask: probes and metrics."""
    return _path_of(request) in _PUBLIC


def _path_of(request: web.Request) -> str | None:
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


@web.middleware
async def with_refusal(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is refused whatever it asks: no proper HTTP, or a client too many, of whom only probes and metrics are answered."""
    refusal = request.get(REFUSAL)
    if refusal is not None and not (refusal.code == TOO_MANY and is_public(request)):
        raise refusal
    return await handler(request)


@web.middleware
async def with_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """401 or 403 before anything of the request is looked at, except where nothing is to be hidden (`Endpoint.public`)."""
    keys = request.app.get(API_KEYS)
    for_admins = _path_of(request) in _ADMIN
    if for_admins and keys is None:  # behind a proxy every client has a local address: only a key tells who asks
        raise _forbidden("This needs an administrator's key, and this server has no keys: set api_key_file.")
    if keys is None or is_public(request):
        return await handler(request)
    offered = _offered(request)
    if offered is None:
        raise _unauthorized("No API key was given: send it as `Authorization: Bearer KEY`.", "missing_api_key")
    tenant = keys.tenant_of(offered)
    if tenant is None:
        raise _unauthorized("The API key is not one of this server's.", "invalid_api_key")
    scope_of(request).tenant = tenant
    if for_admins and not tenant.limits.admin:
        raise _forbidden("This needs an administrator's key: one with `admin` behind it in api_key_file.")
    return await handler(request)


@web.middleware
async def with_limits(request: web.Request, handler: Handler) -> web.StreamResponse:
    """429 for a POST beyond what the holder of its key may ask for. What its answers cost is charged once that is known."""
    scope = scope_of(request)
    tenant = scope.tenant
    if tenant is None or request.method != "POST":
        return await handler(request)
    clock = request.app[CLOCK]
    over = tenant.enter(clock())
    if over is not None:
        raise ApiError(429, over.message, "rate_limit_error", code=over.code, retry_after_s=over.retry_after_s)
    try:
        return await handler(request)
    finally:
        tenant.leave()
        if scope.generation is not None:
            tenant.charge(scope.generation.num_tokens_computed, clock())


async def add_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: what is left of the limits of a minute. A whole answer's tokens are charged before, a stream's later."""
    scope = request.get(SCOPE)
    if scope is not None and scope.tenant is not None:
        response.headers.update(scope.tenant.headers(request.app[CLOCK]()))


def _offered(request: web.Request) -> str | None:
    """OpenAI's header, or Anthropic's."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("X-Api-Key") or None


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, "permission_error", code="admin_key_required")


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(401, message, "authentication_error", code=code, headers={"WWW-Authenticate": "Bearer"})


class CorsPolicy:
    """Origins whose pages may use the API from a browser; none by default. "*" is every origin, "localhost" every local one."""

    def __init__(self, origins: Iterable[str]) -> None:
        """ConfigError for what is no origin."""
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        for origin in self._origins:
            if origin not in ("*", LOCALHOST) and not _ORIGIN.fullmatch(origin):
                example = '"https://chat.example.org", and not "*" or "localhost"'
                raise ConfigError(f"cors_origins: {origin!r} is no origin such as {example}")

    def allowed(self, request: web.Request) -> str | None:
        """What the browser is told of the request's origin; None: nothing."""
        origin = request.headers.get("Origin")
        if origin is None:
            return None
        if "*" in self._origins:
            return "*"
        asked = origin.lower()
        local = LOCALHOST in self._origins and _LOCAL_ORIGIN.fullmatch(asked)
        return origin if local or asked in self._origins else None


CORS = web.AppKey("cors", CorsPolicy)


@web.middleware
async def with_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A browser's question before the real request; it carries no key. "No" is an answer without CORS headers."""
    if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
        return await handler(request)
    if request.app[CORS].allowed(request) is None:
        return web.Response()
    headers = {"Access-Control-Allow-Methods": "GET, POST, HEAD", "Access-Control-Max-Age": str(PREFLIGHT_S)}
    asked = request.headers.get("Access-Control-Request-Headers")
    if asked is not None:
        headers["Access-Control-Allow-Headers"] = asked
    return web.Response(headers=headers)


async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: on every response, errors and streams included."""
    allowed = request.app[CORS].allowed(request)
    if allowed is not None:
        response.headers["Access-Control-Allow-Origin"] = allowed
        response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        if allowed != "*":
            response.headers.add("Vary", "Origin")
