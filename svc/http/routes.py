"""Every route, in one table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from svc.http.anthropic.schema import MessageOut, MessagesIn
from svc.http.endpoints import (
    cache_admin,
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
    slot_actions,
    tokens,
    unsupported,
)
from svc.http.native_schema import FlushedOut, NativeOut, PinOut, PinsOut, PropsOut, SavedSlotOut, SlotActionOut, SlotOut
from svc.http.openapi import DOCUMENT, document
from svc.http.responses.schema import InputTokensOut, ResponseOut, ResponsesIn
from svc.http.schema import (
    ApplyTemplateIn,
    ApplyTemplateOut,
    ChatIn,
    ChatOut,
    CompletionIn,
    CompletionOut,
    CountOut,
    DetokenizeIn,
    DetokenizeOut,
    IndexOut,
    InfillIn,
    JsonObject,
    ModelOut,
    ModelsOut,
    NativeIn,
    PinIn,
    SlotFileIn,
    StatusOut,
    TokenizeIn,
    TokenizeOut,
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str  # GET answers HEAD as well
    path: str
    handler: Handler
    public: bool = False  # answered without an API key
    body: type[Struct] | None = None
    answer: Any = None  # of a request that succeeds, as a type; None: none does
    streams: bool = False  # also answers as events
    admin: bool = False  # answered to keys of administrators only


def _both(
    method: str,
    path: str,
    handler: Handler,
    body: type[Struct] | None = None,
    answer: Any = None,
    *,
    public: bool = False,
    streams: bool = False,
) -> Iterator[Endpoint]:
    """With /v1 and without: clients differ in what they take a base URL to be."""
    yield Endpoint(method, f"/v1{path}", handler, public, body, answer, streams)
    yield Endpoint(method, path, handler, public, body, answer, streams)


NativeAnswer = NativeOut | list[NativeOut]  # a list of several prompts; with `response_fields`, objects of those alone

# What llama-server answers with models that are served here by nobody.
UNSUPPORTED = ("/embedding", "/embeddings", "/rerank", "/reranking", "/audio/transcriptions")

ROUTES = (
    *_both("POST", "/chat/completions", chat.create, ChatIn, ChatOut, streams=True),
    *_both("POST", "/chat/completions/input_tokens", chat.count_tokens, ChatIn, CountOut),
    Endpoint("POST", "/v1/completions", completions.create, body=CompletionIn, answer=CompletionOut, streams=True),
    # As llama-server: OpenAI's form only under /v1.
    Endpoint("POST", "/completions", native.create, body=NativeIn, answer=NativeAnswer, streams=True),
    *_both("GET", "/models", models.list_all, answer=ModelsOut),
    *_both("GET", "/models/{model:.+}", models.show, answer=ModelOut),
    *_both("POST", "/responses", responses.create, ResponsesIn, ResponseOut, streams=True),
    *_both("POST", "/responses/input_tokens", responses.count_tokens, ResponsesIn, InputTokensOut),
    *_both("POST", "/messages", messages.create, MessagesIn, MessageOut, streams=True),
    *_both("POST", "/messages/count_tokens", messages.count_tokens, MessagesIn, CountOut),
    *_both("POST", "/completion", native.create, NativeIn, NativeAnswer, streams=True),
    *_both("POST", "/infill", native.infill, InfillIn, NativeOut, streams=True),
    *(route for path in UNSUPPORTED for route in _both("POST", path, unsupported.refuse)),
    *_both("POST", "/apply-template", chat.apply_template, ApplyTemplateIn, ApplyTemplateOut),
    *_both("POST", "/tokenize", tokens.tokenize, TokenizeIn, TokenizeOut),
    *_both("POST", "/detokenize", tokens.detokenize, DetokenizeIn, DetokenizeOut),
    *_both("GET", "/props", server_state.props, answer=PropsOut),
    *_both("GET", "/slots", server_state.slots, answer=list[SlotOut]),
    *_both("GET", "/slots/saved", slot_actions.saved, answer=list[SavedSlotOut]),
    *_both("POST", "/slots/{slot}", slot_actions.act, SlotFileIn, SlotActionOut),
    Endpoint("POST", "/cache/pin", cache_admin.pin, body=PinIn, answer=PinOut, admin=True),
    Endpoint("GET", "/cache/pins", cache_admin.pins, answer=PinsOut, admin=True),
    Endpoint("DELETE", "/cache/pin/{pin}", cache_admin.unpin, answer=PinsOut, admin=True),
    Endpoint("POST", "/cache/flush", cache_admin.flush, answer=FlushedOut, admin=True),
    *_both("GET", "/health", health.health, answer=StatusOut, public=True),
    Endpoint("GET", "/openapi.json", description.openapi, answer=JsonObject),
    Endpoint("GET", "/livez", health.live, answer=StatusOut, public=True),
    Endpoint("GET", "/readyz", health.ready, answer=StatusOut, public=True),
    Endpoint("GET", "/metrics", metrics.scrape, answer=str, public=True),
    Endpoint("GET", "/", models.index, answer=IndexOut, public=True),
)


def add_routes(app: web.Application) -> None:
    app[DOCUMENT] = document(ROUTES)
    for route in ROUTES:
        if route.method == "GET":
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
