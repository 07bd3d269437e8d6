"""Every route, in one table."""

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from svc.http.endpoints import chat, completions, health, metrics, models, tokens


@dataclass(frozen=True, slots=True)
class Route:
    method: str  # GET answers HEAD as well
    path: str
    handler: Handler


ROUTES = (
    Route("POST", "/v1/chat/completions", chat.create),
    Route("POST", "/chat/completions", chat.create),
    Route("POST", "/v1/completions", completions.create),
    Route("POST", "/completions", completions.create),
    Route("GET", "/v1/models", models.list_all),
    Route("GET", "/models", models.list_all),
    Route("GET", "/v1/models/{model:.+}", models.show),
    Route("GET", "/models/{model:.+}", models.show),
    Route("POST", "/tokenize", tokens.tokenize),
    Route("POST", "/detokenize", tokens.detokenize),
    Route("GET", "/health", health.health),
    Route("GET", "/livez", health.live),
    Route("GET", "/readyz", health.ready),
    Route("GET", "/metrics", metrics.scrape),
    Route("GET", "/", models.index),
)


def add_routes(app: web.Application) -> None:
    for route in ROUTES:
        if route.method == "GET":
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
