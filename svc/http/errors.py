"""Every way a request can fail, as one OpenAI-shaped answer: `{"error": {"message", "type", "param", "code"}}`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from aiohttp import web

from svc.errors import CONTEXT_EXCEEDED, DrainingError, HeadraceError, QueueFullError, RequestError

CONTENT_TYPE = "application/json"
RETRY_WHEN_UNAVAILABLE_S = 5.0


@dataclass(eq=False)
class ApiError(Exception):
    """One failed request: what the client is told. `param` names the field at fault, `code` is a stable word."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, int] = field(default_factory=dict)  # numbers for programs, in the error's object
    closes: bool = False  # the connection: what the client may still send is not read

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, dict[str, str | int | None]]:
        """The JSON object of a response, or of the event that ends a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.details}}

    def response(self, body: object = None) -> web.Response:
        """`body`: another form of the JSON object."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        response = web.Response(
            status=self.status, body=msgspec.json.encode(body or self.body()), content_type=CONTENT_TYPE, headers=headers
        )
        if self.closes:
            response.force_close()
        return response


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def speaks_anthropic(path: str) -> bool:
    """Whether errors on that path have Anthropic's shape."""
    return path.removeprefix("/v1").startswith("/messages")


def anthropic_body(error: ApiError, request_id: str | None = None) -> dict[str, object]:
    """The JSON object of an error on Anthropic's routes."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    body: dict[str, object] = {"type": "error", "error": {"type": kind, "message": error.message}}
    return body if request_id is None else body | {"request_id": request_id}


def unavailable(message: str, code: str) -> ApiError:
    """503: the server cannot answer now, but may soon."""
    return ApiError(503, message, "unavailable_error", code=code, retry_after_s=RETRY_WHEN_UNAVAILABLE_S)


def closing(error: ApiError) -> ApiError:
    """The same, and the connection is closed after it."""
    return replace(error, closes=True)


def not_supported(message: str) -> ApiError:
    """501: llama-server has it, for other kinds of models."""
    return ApiError(501, message, "not_supported_error", code="not_supported")


def model_not_found(model: str) -> ApiError:
    return ApiError(404, f"The model {model[:200]!r} does not exist here.", "invalid_request_error", "model", "model_not_found")


def internal_error(request_id: str) -> ApiError:
    """500 without internals: the log has them under the request's id."""
    message = f"The server failed to answer this request; its log says why under request id {request_id}."
    return ApiError(500, message, "server_error", code="internal_error")


def is_our_bug(error: BaseException) -> bool:
    """Whether nobody but us can be blamed: to be logged with a traceback."""
    return not isinstance(error, ApiError | HeadraceError | web.HTTPException | web.RequestPayloadError)


def api_error(error: Exception, request: web.Request, request_id: str) -> ApiError:
    """The answer to any exception that a handler raised."""
    match error:
        case ApiError():
            return error
        case RequestError():
            kind = "exceed_context_size_error" if error.code == CONTEXT_EXCEEDED else "invalid_request_error"  # llama-server's word
            return ApiError(400, str(error), kind, error.param, error.code, details=error.details)
        case QueueFullError():
            return ApiError(429, str(error), "rate_limit_error", code=error.code, retry_after_s=error.retry_after_s)
        case DrainingError():
            return unavailable(str(error) or "The server is shutting down.", "draining")
        case web.RequestPayloadError():
            message = "The request body does not arrive as its headers say (length or chunks)."
            return ApiError(400, message, "invalid_request_error", code="invalid_body")
        case web.HTTPException():
            return _of_aiohttp(error, request)
    return internal_error(request_id)


def _of_aiohttp(error: web.HTTPException, request: web.Request) -> ApiError:
    """What aiohttp itself raises: unknown routes and methods."""
    path = request.path[:200]
    match error:
        case web.HTTPNotFound():
            return ApiError(404, f"There is no {request.method} {path} here.", "invalid_request_error", code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{path} does not take {request.method}, only {allowed}."
            return ApiError(405, message, "invalid_request_error", code="method_not_allowed", headers={"Allow": allowed})
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return ApiError(error.status, error.reason or "The request failed.", kind)
