"""The HTTP server: builds the application, opens the port, closes it again."""

import logging
import time
from collections.abc import Callable, Iterable

from aiohttp import http_exceptions, web

from svc.errors import ConfigError
from svc.http.access import (
    API_KEYS,
    CLOCK,
    CORS,
    CorsPolicy,
    add_cors_headers,
    add_limit_headers,
    with_key,
    with_limits,
    with_preflight,
    with_refusal,
)
from svc.http.address import hosts, listening_problem
from svc.http.api_keys import ApiKeys
from svc.http.body import BODIES, Bodies
from svc.http.connections import Connections, affordable, shared_out
from svc.http.middleware import add_headers, with_errors, with_expectation, with_plain_body, with_scope
from svc.http.protocol import Runner
from svc.http.routes import add_routes
from svc.http.service import DOOR, LOGGER, METRICS, Door, Readiness
from svc.http.text_threads import TEXT_THREADS, TextThreads
from svc.log import Logger
from svc.metrics import HttpStats, Metrics

KEEP_ALIVE_S = 75.0  # of idle connections: longer than proxies keep theirs, so that they close first
RESERVED_CONNECTIONS = 16  # at most, beyond max_connections, for probes and metrics
CLOSE_S = 5.0  # what handlers get to write their last words at the end; the engine has drained before


class HttpServer:
    """One listening port. Owner of aiohttp's runner and of the threads for large requests."""

    def __init__(
        self,
        door: Door,
        metrics: Metrics,
        logger: Logger,
        *,
        body_timeout_s: float = 60.0,
        max_connections: int = 1024,
        keys: ApiKeys | None = None,
        cors_origins: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys`: None lets everybody in. `clock`: of the keys' limits. ConfigError for what is no origin."""
        asking = [with_scope, with_errors, with_refusal, with_preflight, with_key, with_limits]
        app = web.Application(middlewares=[*asking, with_expectation, with_plain_body])
        metrics.follow_readiness(lambda: door.readiness.value, [state.value for state in Readiness])
        app[DOOR], app[METRICS], app[LOGGER] = door, metrics, logger
        self.bodies = app[BODIES] = Bodies(body_timeout_s)
        app[CORS] = CorsPolicy(cors_origins)
        app[CLOCK] = clock
        self._threads = app[TEXT_THREADS] = TextThreads()
        if keys is not None:
            app[API_KEYS] = keys
        app.on_response_prepare.extend((add_headers, add_cors_headers, add_limit_headers))
        add_routes(app)
        self._logger = logger
        self.clients = self._connections(max_connections)
        metrics.follow_http(self._stats)
        self._runner = Runner(
            app,
            self.clients,
            access_log=None,
            auto_decompress=False,  # `with_plain_body` refuses what it would expand
            logger=_protocol_logger(),
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_S,
        )

    def _connections(self, wanted: int) -> Connections:
        limit, reserve = shared_out(affordable(wanted + RESERVED_CONNECTIONS), wanted, RESERVED_CONNECTIONS)
        if limit < wanted:
            reason = f"the process may open too few files (ulimit -n) for max_connections = {wanted}: {limit} it is"
            self._logger.warning("few_connections", reason=reason)
        return Connections(limit, reserve, self._warn_of_clients)

    def _stats(self) -> HttpStats:
        clients = self.clients
        return HttpStats(len(clients), clients.limit, clients.num_dropped, clients.num_refused, self.bodies.held_bytes)

    def _warn_of_clients(self, number: int) -> None:
        reason = f"{number} are open: idle ones are closed for new ones; where all are busy, new ones are refused"
        self._logger.warning("too_many_connections", reason=reason)

    async def start(self, host: str, port: int) -> str:
        """Listens and answers from now on; gives the URL, of several addresses the first one's. ConfigError when one cannot be had.

        All of them have the same port, also where `port` is 0.
        """
        await self._runner.setup()
        for each in hosts(host):
            try:
                await web.TCPSite(self._runner, each, port).start()
            except (OSError, OverflowError) as error:
                await self._runner.cleanup()
                raise ConfigError(listening_problem(error, each, port)) from None
            port = self._runner.addresses[0][1]
        return _url(hosts(host)[0], port)

    async def stop(self) -> None:
        """Closes the port, lets handlers finish for a moment, ends the rest."""
        await self._runner.cleanup()
        self._threads.close()


class _NoTracebacks(logging.Filter):
    """Of what a client has done wrong neither our stack nor its words."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, http_exceptions.HttpProcessingError | web.RequestPayloadError | ConnectionError):
            record.msg, record.args = "not HTTP: %s", (type(error).__name__,)
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        return True


def _protocol_logger() -> logging.Logger:
    """Where aiohttp tells what went wrong outside of any handler."""
    logger = logging.getLogger("headrace.http")
    if not logger.filters:
        logger.addFilter(_NoTracebacks())
    return logger


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
