"""GET /openapi.json."""

from aiohttp import web

from svc.http.errors import CONTENT_TYPE
from svc.http.openapi import DOCUMENT


async def openapi(request: web.Request) -> web.Response:
    """This description."""
    return web.Response(body=request.app[DOCUMENT], content_type=CONTENT_TYPE)
