"""POST /v1/responses and /v1/responses/input_tokens: OpenAI's newer API. Nothing is stored: requests have whole conversations."""

import uuid

from aiohttp import web

from svc.http.body import with_body
from svc.http.chat_plan import ChatPlan, count_prompt, plan_chat
from svc.http.decoding import decode
from svc.http.endpoints.chat import start
from svc.http.fields import translating
from svc.http.logprobs import ResponsesLogprobs
from svc.http.reply import json_response, reply
from svc.http.responses.conversation import as_chat
from svc.http.responses.dialect import ResponsesDialect
from svc.http.responses.schema import InputTokensOut, ResponsesIn
from svc.http.service import DOOR, Service

NAMES = {"messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format"}


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    body, plan = await with_body(request, _plan, service)
    generation = await start(request, service, plan, f"resp_{uuid.uuid4().hex}", ResponsesLogprobs)
    parallel = body.parallel_tool_calls is not False
    dialect = ResponsesDialect(service, generation, body, show_reasoning=plan.show_reasoning, parallel=parallel)
    return await reply(request, service, generation, dialect)


def _plan(raw: bytearray, service: Service) -> tuple[ResponsesIn, ChatPlan]:
    body = decode(ResponsesIn, raw)
    with translating(NAMES):
        return body, plan_chat(as_chat(body), service)


async def count_tokens(request: web.Request) -> web.Response:
    service = request.app[DOOR].service
    return await with_body(request, _count, service)


def _count(raw: bytearray, service: Service) -> web.Response:
    chat = as_chat(decode(ResponsesIn, raw))
    with translating(NAMES):
        return json_response(InputTokensOut(count_prompt(chat, service)))
