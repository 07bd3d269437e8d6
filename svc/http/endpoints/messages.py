"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

import uuid

from aiohttp import web

from svc.http.anthropic.conversation import as_chat
from svc.http.anthropic.dialect import MessagesDialect
from svc.http.anthropic.schema import MessagesIn
from svc.http.body import with_body
from svc.http.chat_plan import ON_MESSAGES, ChatPlan, count_prompt, plan_chat
from svc.http.decoding import decode
from svc.http.endpoints.chat import start
from svc.http.fields import translating
from svc.http.reply import json_response, reply
from svc.http.schema import CountOut
from svc.http.service import DOOR, Service

NAMES = {"stop": "stop_sequences", "reasoning_effort": "output_config.effort", "response_format": "output_config.format"}


async def create(request: web.Request) -> web.StreamResponse:
    service = request.app[DOOR].service
    plan = await with_body(request, _plan, service)
    generation = await start(request, service, plan, f"msg_{uuid.uuid4().hex}")
    return await reply(request, service, generation, MessagesDialect(service, generation, show_reasoning=plan.show_reasoning))


def _plan(raw: bytearray, service: Service) -> ChatPlan:
    chat = as_chat(decode(MessagesIn, raw))
    with translating(NAMES):
        return plan_chat(chat, service, ON_MESSAGES)


async def count_tokens(request: web.Request) -> web.Response:
    service = request.app[DOOR].service
    return await with_body(request, _count, service)


def _count(raw: bytearray, service: Service) -> web.Response:
    chat = as_chat(decode(MessagesIn, raw))
    with translating(NAMES):
        return json_response(CountOut(count_prompt(chat, service, ON_MESSAGES)))
