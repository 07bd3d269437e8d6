"""Who may ask: API keys, and the origins whose pages a browser lets talk to us (CORS)."""

import hashlib
import hmac
import re
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from svc.errors import ConfigError
from svc.http.errors import ApiError
from svc.http.protocol import REFUSAL, TOO_MANY
from svc.http.routes import ROUTES

_KEY = re.compile(r"[!-~]+")
_MAX_FILE_BYTES = 2**20  # far more keys than anybody has: a larger file is another one, named by mistake
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
LOCALHOST = "localhost"  # in `cors_origins`: any port of this machine
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_PUBLIC = frozenset(route.path for route in ROUTES if route.public)
PREFLIGHT_S = 600  # how long a browser may remember that it asked


class ApiKeys:
    """The keys that open the server. Only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def load(cls, path: str) -> "ApiKeys":
        """One key per line; empty lines and those that begin with # do not count. ConfigError names the file and the line."""
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"api_key_file: cannot read {path}: {error.strerror or error}") from None
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"api_key_file: {path} is larger than {_MAX_FILE_BYTES} bytes")
        try:
            lines = data.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"api_key_file: {path} is not UTF-8 text") from None
        keys = []
        for number, line in enumerate(lines, 1):
            key = line.strip()
            if not key or key.startswith("#"):
                continue
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"api_key_file: line {number} of {path} is no key: spaces and letters beyond ASCII are not allowed"
                )
            keys.append(key)
        if not keys:
            raise ConfigError(f"api_key_file: {path} has no key in it")
        return cls(keys)

    def replace(self, others: "ApiKeys") -> None:
        """From now on the keys of `others` open the server, and no longer the present ones."""
        self._digests = others._digests

    @property
    def num_keys(self) -> int:
        return len(self._digests)

    def accept(self, offered: str) -> bool:
        """Whether it is one of the keys. The time taken tells nothing about them."""
        digest = _digest(offered)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all are compared, whichever fits
        return any(matches)

    def __repr__(self) -> str:
        return f"<ApiKeys, {len(self._digests)} of them>"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


API_KEYS = web.AppKey("api_keys", ApiKeys)  # absent: everybody is let in


def is_public(request: web.Request) -> bool:
    """Whether the route is one of those that anybody may ask: probes and metrics."""
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in _PUBLIC


@web.middleware
async def with_refusal(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is refused whatever it asks: no proper HTTP, or a client too many, of whom only probes and metrics are answered."""
    refusal = request.get(REFUSAL)
    if refusal is not None and not (refusal.code == TOO_MANY and is_public(request)):
        raise refusal
    return await handler(request)


@web.middleware
async def with_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """401 before anything of the request is looked at, except where nothing is to be hidden (`Route.public`)."""
    keys = request.app.get(API_KEYS)
    if keys is None or is_public(request):
        return await handler(request)
    offered = _offered(request)
    if offered is None:
        raise _unauthorized("No API key was given: send it as `Authorization: Bearer KEY`.", "missing_api_key")
    if not keys.accept(offered):
        raise _unauthorized("The API key is not one of this server's.", "invalid_api_key")
    return await handler(request)


def _offered(request: web.Request) -> str | None:
    """OpenAI's header, or Anthropic's."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("X-Api-Key") or None


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
        response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
        if allowed != "*":
            response.headers.add("Vary", "Origin")
