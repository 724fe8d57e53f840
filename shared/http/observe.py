"""One log line and one set of measurements for each request. Never the content of a request."""

import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.disconnect import CLIENT_CLOSED_REQUEST
from shared.http.metrics import HttpMetrics

_log = structlog.get_logger("ownlm.http")

_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_REQUEST_ID = 128


class ObserveMiddleware:
    """Measures, logs and numbers requests; pure ASGI, so streams pass through untouched.

    The client's `X-Request-ID` is kept, else one is made; the answer and the log line carry it.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if given.isprintable() and 0 < len(given) <= _MAX_REQUEST_ID else uuid.uuid4().hex
        status = CLIENT_CLOSED_REQUEST
        started = time.perf_counter()

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            with self._metrics.in_flight.track_inprogress(), structlog.contextvars.bound_contextvars(id=request_id):
                await self._app(scope, receive, observed_send)
        except Exception:
            status = 500 if status == CLIENT_CLOSED_REQUEST else status
            raise
        finally:
            self._record(scope, status, time.perf_counter() - started, request_id)

    def _record(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.duration.labels(method, route).observe(seconds)
        log = _log.debug if route in _PROBES else _log.info
        log("request", method=method, route=route, status=status, ms=round(seconds * 1000, 1), id=request_id)
