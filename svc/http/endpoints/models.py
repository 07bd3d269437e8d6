"""GET /v1/models and /v1/models/{model}, and GET /: what is served here."""

from aiohttp import web

from svc.http.errors import model_not_found
from svc.http.reply import json_response
from svc.http.schema import IndexOut, ModelOut, ModelsOut
from svc.http.service import DOOR, Service


async def index(request: web.Request) -> web.Response:
    """GET and HEAD /: some clients knock here first. Answers also while loading."""
    return json_response(IndexOut("headrace", request.app[DOOR].readiness.value))


async def list_all(request: web.Request) -> web.Response:
    return json_response(ModelsOut([_model(request.app[DOOR].service)]))


async def show(request: web.Request) -> web.Response:
    service = request.app[DOOR].service
    asked = request.match_info["model"]
    if not service.model.is_called(asked):
        raise model_not_found(asked)
    return json_response(_model(service))


def _model(service: Service) -> ModelOut:
    model = service.model
    aliases = [model.name, *model.aliases] if model.aliases else []
    return ModelOut(model.name, model.created, service.engine.context_tokens, model.meta, aliases, list(model.tags))
