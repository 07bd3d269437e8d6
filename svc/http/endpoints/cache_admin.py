"""POST /cache/pin, GET /cache/pins, DELETE /cache/pin/{pin} and POST /cache/flush: the operator's hands on the cache."""

import asyncio
import time
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from svc.compute.sampling.params import SamplingParams
from svc.errors import RequestError
from svc.http.answer import GenerationFailedError
from svc.http.body import with_body
from svc.http.cache_report import owner_of
from svc.http.chat_plan import chat_template, conversation, offered_tools
from svc.http.decoding import decode
from svc.http.errors import ApiError, unavailable
from svc.http.fields import blaming
from svc.http.middleware import scope_of
from svc.http.native_schema import FlushedOut, PinOut, PinsOut
from svc.http.prompts import NamedPrompt, encode_prompts
from svc.http.reply import json_response
from svc.http.schema import ApplyTemplateIn, PinIn
from svc.http.service import DOOR, Service
from svc.http.text.chat_template import PromptTokens
from svc.http.text.prompt_limit import PromptLimit
from svc.slots.events import Event, Finished, FinishReason
from svc.slots.operator_pins import Pin
from svc.slots.request import Request

MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prefix that is to be pinned."""

    prompt: PromptTokens
    name: str


async def pin(request: web.Request) -> web.Response:
    """Keeps a prefix from eviction; evaluates it first where it is not known. RequestError beyond the budget."""
    service = request.app[DOOR].service
    wanted = await with_body(request, _wanted, service)
    tokens = np.array(wanted.prompt.ids, np.int32)
    pins, created = service.engine.pins, int(time.time())
    pins.check_length(len(tokens))
    made = pins.add(tokens, wanted.name, created)
    if made is None:
        await _evaluate(request, service, wanted.prompt)
        made = pins.add(tokens, wanted.name, created)
    if made is None:
        raise unavailable("No snapshot could be taken at the end of the prefix: all are in use. Try again.", "no_snapshot")
    return json_response(_out(made))


async def pins(request: web.Request) -> web.Response:
    """All pins, and how much of their budget is used."""
    return json_response(_listed(request.app[DOOR].service))


async def unpin(request: web.Request) -> web.Response:
    """Ends a pin; answers with the others. What it kept is evicted like anything else from now on."""
    service, text = request.app[DOOR].service, request.match_info["pin"]
    known = text.isascii() and text.isdecimal() and len(text) < 10
    if not (known and service.engine.pins.remove(int(text))):
        raise ApiError(404, f"There is no pin {text[:20]!r}.", "invalid_request_error", "pin", "pin_not_found")
    return json_response(_listed(service))


async def flush(request: web.Request) -> web.Response:
    """Forgets everything that is known, pins and the cache on disk included. Running requests go on."""
    done = await request.app[DOOR].service.engine.flush()
    return json_response(FlushedOut(done.num_snapshots, done.num_pages, done.num_pins, done.disk_bytes))


def _wanted(raw: bytearray, service: Service) -> Wanted:
    body = decode(PinIn, raw)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give prompt or messages, and not both.", param="prompt")
    if len(body.name) > MAX_NAME_CHARS:
        raise RequestError(f"name has {len(body.name)} characters; at most {MAX_NAME_CHARS} are allowed.", param="name")
    return Wanted(_prompt(body, service), body.name)


def _prompt(body: PinIn, service: Service) -> PromptTokens:
    context_tokens = service.engine.context_tokens
    if body.prompt is not None:
        return encode_prompts([NamedPrompt("prompt", body.prompt)], service.vocabulary, context_tokens)[0]
    messages = ApplyTemplateIn(
        messages=body.messages or [],
        tools=body.tools,
        chat_template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
    )
    limit = PromptLimit(context_tokens, "messages")
    template = chat_template(service)
    limit.check(len(messages.messages))
    with blaming("messages"):
        texts, how = conversation(messages, service, offered_tools(messages, service))
        return template.encode_chat(texts, limit=limit, **how)


async def _evaluate(request: web.Request, service: Service, prompt: PromptTokens) -> None:
    """As a request for no token of an answer. Leaving ends it."""
    scope = scope_of(request)
    ended: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()

    def on_event(event: Event) -> None:
        if isinstance(event, Finished) and not ended.done():
            ended.set_result(event)

    wanted = Request(
        id=f"pin-{scope.id}",
        prompt=prompt.ids,
        max_tokens=service.engine.validate(len(prompt.ids), 0),
        params=SamplingParams(temperature=0.0),
        boundaries=prompt.boundaries,
        tenant=scope.key_name,
        owner=owner_of(scope.key_name, all_shown=service.show_prompts),
    )
    stream = service.engine.submit(wanted, on_event)
    try:
        finished = await ended
    finally:
        stream.cancel()
    if finished.reason is FinishReason.ERROR:
        raise GenerationFailedError(finished.error or "")
    if finished.reason is FinishReason.CANCELLED:
        raise unavailable("The server is shutting down", "draining")


def _listed(service: Service) -> PinsOut:
    pins = service.engine.pins
    stats = pins.stats()
    return PinsOut([_out(pin) for pin in pins.listed()], stats.used_bytes, stats.budget_bytes, stats.given_up)


def _out(pin: Pin) -> PinOut:
    return PinOut(pin.id, pin.name, len(pin.tokens), pin.num_bytes, pin.created)
