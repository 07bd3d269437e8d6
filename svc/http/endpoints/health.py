"""Probes: /livez (the process answers), /readyz (requests will be served), /health (the same as llama-server says it)."""

from aiohttp import web

from svc.http.reply import json_response
from svc.http.schema import StatusOut
from svc.http.service import DOOR, Readiness


async def live(request: web.Request) -> web.Response:
    return json_response(StatusOut("ok"))


async def ready(request: web.Request) -> web.Response:
    """503 with an OpenAI-shaped error and Retry-After while loading, draining, stalled or failed."""
    door = request.app[DOOR]
    readiness = door.readiness
    if readiness is not Readiness.READY:
        raise door.refusal(readiness)
    return json_response(StatusOut("ready"))


async def health(request: web.Request) -> web.Response:
    """As llama-server: {"status": "ok"}, or 503 with an error whose code is the number."""
    door = request.app[DOOR]
    readiness = door.readiness
    if readiness is Readiness.READY:
        return json_response(StatusOut("ok"))
    refusal = door.refusal(readiness)
    response = refusal.response()
    response.body = json_response({"error": {**refusal.body()["error"], "code": refusal.status}}).body
    return response
