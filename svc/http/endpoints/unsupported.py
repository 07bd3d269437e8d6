"""POST to the routes of models that embed, rank or listen: there is none here, and a 404 would not say so."""

from aiohttp import web

from svc.http.errors import not_supported


async def refuse(request: web.Request) -> web.Response:
    raise not_supported(f"{request.path} needs another kind of model: this server generates text.")
