"""GET /metrics for Prometheus; OpenMetrics when the scraper asks for it."""

from aiohttp import web

from svc.http.service import METRICS


async def scrape(request: web.Request) -> web.Response:
    metrics = request.app[METRICS]
    body, content_type = metrics.render(request.headers.get("Accept", ""))
    started = str(int(metrics.start_s))  # llama-server's word for when its counters began
    return web.Response(body=body, headers={"Content-Type": content_type, "Process-Start-Time-Unix": started})
