"""GET /metrics for Prometheus; OpenMetrics when the scraper asks for it."""

from aiohttp import web

from svc.http.service import METRICS


async def scrape(request: web.Request) -> web.Response:
    body, content_type = request.app[METRICS].render(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})
