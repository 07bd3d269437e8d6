"""Every route, in one table."""

from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from svc.http.anthropic.schema import MessagesIn
from svc.http.endpoints import (
    chat,
    completions,
    description,
    health,
    messages,
    metrics,
    models,
    native,
    responses,
    server_state,
    tokens,
    unsupported,
)
from svc.http.openapi import DOCUMENT, document
from svc.http.responses.schema import ResponsesIn
from svc.http.schema import ApplyTemplateIn, ChatIn, CompletionIn, DetokenizeIn, InfillIn, NativeIn, TokenizeIn


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str  # GET answers HEAD as well
    path: str
    handler: Handler
    public: bool = False  # answered without an API key
    body: type[Struct] | None = None


def _both(
    method: str, path: str, handler: Handler, body: type[Struct] | None = None, *, public: bool = False
) -> Iterator[Endpoint]:
    """With /v1 and without: clients differ in what they take a base URL to be."""
    yield Endpoint(method, f"/v1{path}", handler, public, body)
    yield Endpoint(method, path, handler, public, body)


# What llama-server answers with models that are served here by nobody.
UNSUPPORTED = ("/embedding", "/embeddings", "/rerank", "/reranking", "/audio/transcriptions")

ROUTES = (
    *_both("POST", "/chat/completions", chat.create, ChatIn),
    *_both("POST", "/chat/completions/input_tokens", chat.count_tokens, ChatIn),
    Endpoint("POST", "/v1/completions", completions.create, body=CompletionIn),
    Endpoint("POST", "/completions", native.create, body=NativeIn),  # as llama-server: OpenAI's form only under /v1
    *_both("GET", "/models", models.list_all),
    *_both("GET", "/models/{model:.+}", models.show),
    *_both("POST", "/responses", responses.create, ResponsesIn),
    *_both("POST", "/responses/input_tokens", responses.count_tokens, ResponsesIn),
    *_both("POST", "/messages", messages.create, MessagesIn),
    *_both("POST", "/messages/count_tokens", messages.count_tokens, MessagesIn),
    *_both("POST", "/completion", native.create, NativeIn),
    *_both("POST", "/infill", native.infill, InfillIn),
    *(route for path in UNSUPPORTED for route in _both("POST", path, unsupported.refuse)),
    *_both("POST", "/apply-template", chat.apply_template, ApplyTemplateIn),
    *_both("POST", "/tokenize", tokens.tokenize, TokenizeIn),
    *_both("POST", "/detokenize", tokens.detokenize, DetokenizeIn),
    *_both("GET", "/props", server_state.props),
    *_both("GET", "/slots", server_state.slots),
    *_both("GET", "/health", health.health, public=True),
    Endpoint("GET", "/openapi.json", description.openapi),
    Endpoint("GET", "/livez", health.live, public=True),
    Endpoint("GET", "/readyz", health.ready, public=True),
    Endpoint("GET", "/metrics", metrics.scrape, public=True),
    Endpoint("GET", "/", models.index, public=True),
)


def add_routes(app: web.Application) -> None:
    app[DOCUMENT] = document(ROUTES)
    for route in ROUTES:
        if route.method == "GET":
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
