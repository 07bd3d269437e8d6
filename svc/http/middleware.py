"""Around every handler: the request's id, the answer to exceptions, and the one canonical log line."""

import re
import time
import uuid
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from svc.http.answer import GenerationFailedError
from svc.http.errors import ApiError, api_error, internal_error, is_our_bug
from svc.http.generation import Generation
from svc.http.service import LOGGER, METRICS

CLIENT_LEFT = 499  # nginx's number for a client that closed the connection before it had its answer
ID_HEADER = "X-Request-Id"
_GOOD_ID = re.compile(r"[!-~]{1,128}")
_QUIET = frozenset({"/health", "/livez", "/readyz", "/metrics", "/"})  # asked every few seconds: logged at debug level only


class RequestScope:
    """What is known of one HTTP request while it is handled: its id, its arrival, and the fields of its log line."""

    def __init__(self, request: web.Request) -> None:
        asked = request.headers.get(ID_HEADER, "")
        self.id = asked if _GOOD_ID.fullmatch(asked) else uuid.uuid4().hex
        self.arrival_s = time.monotonic()
        self.generation: Generation | None = None
        self.error: str | None = None  # of a stream that had begun: its status says 200
        self.client_left = False

    def fields(self) -> dict[str, Any]:
        """The part of the log line that handlers contribute."""
        fields: dict[str, Any] = {} if self.generation is None else _generation_fields(self.generation)
        if self.error is not None:
            fields["error"] = self.error
        return fields


SCOPE = web.RequestKey("scope", RequestScope)


def scope_of(request: web.Request) -> RequestScope:
    return request[SCOPE]


@web.middleware
async def with_scope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: opens the scope, and writes the log line however the handler ends."""
    scope = request[SCOPE] = RequestScope(request)
    status = CLIENT_LEFT  # if nothing else: cancelled, because the client has left
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        _log(request, scope, CLIENT_LEFT if scope.client_left else status)


@web.middleware
async def with_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns exceptions into answers; what only we can be blamed for is logged with its traceback."""
    scope = scope_of(request)
    try:
        return await handler(request)
    except ConnectionResetError:  # while reading the body, or before the first byte of the answer
        scope.client_left = True
        return web.Response(status=CLIENT_LEFT)
    except GenerationFailedError as error:
        scope.error = str(error)
        return internal_error(scope.id).response()
    except Exception as error:
        if is_our_bug(error):
            request.app[LOGGER].exception("request_failed", request_id=scope.id, path=request.path)
        answer = api_error(error, request, scope.id)
        scope.error = answer.message
        return answer.response()


@web.middleware
async def with_plain_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compressed bodies are refused, and nothing expands them: a megabyte of them can be gigabytes, key or no key."""
    coding = request.headers.get("Content-Encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        message = f"A request body in Content-Encoding {coding[:40]!r} is not taken; send it as it is."
        raise ApiError(415, message, "invalid_request_error", code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: what every response carries, streams included."""
    response.headers["Server"] = "headrace"
    scope = request.get(SCOPE)
    if scope is not None:
        response.headers[ID_HEADER] = scope.id


def _log(request: web.Request, scope: RequestScope, status: int) -> None:
    seconds = time.monotonic() - scope.arrival_s
    route = request.match_info.route.resource.canonical if request.match_info.route.resource else "unknown"
    request.app[METRICS].http_request(route, status)
    write = request.app[LOGGER].debug if request.path in _QUIET else request.app[LOGGER].info
    write(
        "request",
        request_id=scope.id,
        method=request.method,
        path=request.path[:200],
        status=status,
        ms=_ms(seconds),
        **scope.fields(),
    )


def _generation_fields(generation: Generation) -> dict[str, Any]:
    """Counts and times of the answers; no text. With several answers: sums, and times of the first one."""
    options, params = generation.options, generation.options.params
    ends = [answer.finished for answer in generation.answers if answer.finished]
    fields: dict[str, Any] = {"id": generation.id, "stream": options.stream, "n": len(generation.answers)}
    fields |= {"temperature": params.temperature, "seed": params.seed, "max_tokens": options.max_tokens}
    if not ends:
        return fields
    usage, timing, cache = generation.usage(), ends[0].timing, ends[0].cache
    decoded = ends[0].usage.completion_tokens - 1  # -1: there was no first token
    return fields | {
        "finish": ",".join(sorted({end.reason.value for end in ends})),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "generated_tokens": usage.completion_tokens,
        "queue_ms": _ms(timing.queue_s),
        "ttft_ms": _ms(timing.queue_s + timing.prefill_s) if decoded >= 0 else None,
        "tpot_ms": _ms(timing.decode_s / decoded) if decoded > 0 else None,
        "matched_tokens": cache.matched_tokens,
        "resumed_at": cache.resumed_at,
        "why": cache.reason,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
