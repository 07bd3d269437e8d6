"""Around every handler: the request's id, the answer to exceptions, and the one canonical log line."""

import re
import time
import uuid
from typing import Any

from aiohttp import web
from aiohttp.hdrs import METH_ALL
from aiohttp.typedefs import Handler

from svc.http.answer import GenerationFailedError
from svc.http.errors import ApiError, anthropic_body, api_error, internal_error, is_our_bug, speaks_anthropic
from svc.http.generation import Generation
from svc.http.log_fields import loggable
from svc.http.protocol import CONTINUE_EXPECTED, EXPECTATION, REFUSAL
from svc.http.rate_limits import Tenant
from svc.http.service import LOGGER, METRICS

CLIENT_LEFT = 499  # nginx's number for a client that closed the connection before it had its answer
TOO_MANY_REQUESTS = 429
ID_HEADER = "X-Request-Id"
_GOOD_ID = re.compile(r"[!-~]{1,128}")
UNKNOWN = "unknown"  # a path that is no route: what it says is the client's
_QUIET = frozenset({"/health", "/livez", "/readyz", "/metrics", "/"})  # asked every few seconds: logged at debug level only


class RequestScope:
    """What is known of one HTTP request while it is handled: its id, its arrival, and the fields of its log line."""

    def __init__(self, request: web.Request) -> None:
        asked = request.headers.get(ID_HEADER, "")
        self.id = asked if _GOOD_ID.fullmatch(asked) else uuid.uuid4().hex
        self.arrival_s = time.monotonic()
        self.tenant: Tenant | None = None  # who holds the key that it came with
        self.generation: Generation | None = None
        self.error: str | None = None  # our own words, also of a stream that had begun: its status says 200
        self.param: str | None = None  # the field at fault
        self.cause: str | None = None  # the class of what the HTTP parser raised
        self.client_left = False

    def fields(self) -> dict[str, Any]:
        """The part of the log line that handlers contribute."""
        fields: dict[str, Any] = {} if self.generation is None else _generation_fields(self.generation)
        others = {"key": self.key_name or None, "error": self.error, "param": self.param, "cause": self.cause}
        return fields | {name: value for name, value in others.items() if value is not None}

    @property
    def key_name(self) -> str:
        """The name of the key, from the key file; empty without one."""
        return "" if self.tenant is None else self.tenant.name

    def refused(self, answer: ApiError) -> None:
        """The answer is this error. Its message may quote the request, so the log has its code and its field."""
        self.error = answer.code or answer.type
        self.cause = None if answer.__cause__ is None else type(answer.__cause__).__name__
        self.param = None if answer.param is None else loggable(answer.param)


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
        if EXPECTATION in request and not request.content.is_eof():
            response.force_close()  # the client waits to be asked for its body: whether it still sends it nobody knows
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
        return _error_response(internal_error(scope.id), request, scope)
    except Exception as error:
        if is_our_bug(error):
            request.app[LOGGER].exception("request_failed", request_id=scope.id, path=request.path)
        answer = api_error(error, request, scope.id)
        scope.refused(answer)
        return _error_response(answer, request, scope)


def _error_response(error: ApiError, request: web.Request, scope: RequestScope) -> web.Response:
    """In the form of the route's own dialect."""
    return error.response(anthropic_body(error, scope.id) if speaks_anthropic(request.path) else None)


@web.middleware
async def with_plain_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compressed bodies are refused, and nothing expands them: a megabyte of them can be gigabytes, key or no key."""
    coding = request.headers.get("Content-Encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        message = f"A request body in Content-Encoding {coding[:40]!r} is not taken; send it as it is."
        raise ApiError(415, message, "invalid_request_error", code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
    return await handler(request)


@web.middleware
async def with_expectation(request: web.Request, handler: Handler) -> web.StreamResponse:
    """417 for an `Expect` that nobody can meet. 100-continue is answered where the body is read, once all is known against it."""
    if request.get(EXPECTATION, CONTINUE_EXPECTED).lower() != CONTINUE_EXPECTED:
        message = "Of expectations only 100-continue can be met."
        raise ApiError(417, message, "invalid_request_error", code="expectation_failed", closes=True)
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: what every response carries, streams included."""
    response.headers["Server"] = "headrace"
    scope = request.get(SCOPE)
    if scope is not None:
        response.headers[ID_HEADER] = scope.id


def _log(request: web.Request, scope: RequestScope, status: int) -> None:
    seconds = time.monotonic() - scope.arrival_s
    resource = None if REFUSAL in request else request.match_info.route.resource
    route = resource.canonical if resource else UNKNOWN
    metrics = request.app[METRICS]
    metrics.http_request(route, status, scope.key_name)
    if status == TOO_MANY_REQUESTS and scope.error is not None:
        metrics.refused(scope.error, scope.key_name)
    write = request.app[LOGGER].debug if route in _QUIET else request.app[LOGGER].info
    write(
        "request",
        request_id=scope.id,
        method=request.method if request.method in METH_ALL else None,
        path=route,
        status=status,
        ms=_ms(seconds),
        **scope.fields(),
    )


def _generation_fields(generation: Generation) -> dict[str, Any]:
    """Counts and times of the answers; no text. With several answers: sums, and times of the first one."""
    options, params = generation.options, generation.options.params
    ended = [answer for answer in generation.answers if answer.finished]
    ends = [answer.finished for answer in ended if answer.finished]
    fields: dict[str, Any] = {"id": generation.id, "stream": options.stream, "n": len(generation.answers)}
    fields |= {"temperature": params.temperature, "seed": params.seed, "max_tokens": options.max_tokens}
    if not ends:
        return fields
    usage, timing, cache = generation.usage(), ends[0].timing, ends[0].cache
    intervals = ended[0].num_intervals
    return fields | {
        "finish": ",".join(sorted({end.reason.value for end in ends})),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "generated_tokens": usage.completion_tokens,
        "queue_ms": _ms(timing.queue_s),
        "ttft_ms": _ms(timing.queue_s + timing.prefill_s) if ends[0].usage.completion_tokens else None,
        "tpot_ms": _ms(timing.decode_s / intervals) if intervals else None,
        "matched_tokens": cache.matched_tokens,
        "resumed_at": cache.resumed_at,
        "why": cache.reason,
        "tier": cache.tier,
        "differs_at": None if cache.difference is None else cache.difference.position,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
