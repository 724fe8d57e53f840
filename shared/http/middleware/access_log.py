"""One log line and one set of measurements for each request. Never the content of a request."""

import time
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.disconnect import CLIENT_CLOSED_REQUEST
from shared.http.metrics import HttpMetrics
from shared.http.middleware.refusals import refusal_of
from shared.http.probes import QUIET_PATHS
from shared.http.request_context import RequestRecord, current_request

_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REFUSED = frozenset({401, 408, 413, 429, 503})


class ObserveMiddleware:
    """Measures, logs and numbers requests; pure ASGI, so streams pass through untouched.

    The client's `X-Request-ID` is kept, else one is made; the answer and the log line carry it. An answer that the
    client did not wait for is counted as 499.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._paths: frozenset[str] | None = None
        self._log = structlog.get_logger("ownlm.http").bind()  # once: structlog binds its loggers at each use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(next((value for name, value in scope["headers"] if name == b"x-request-id"), None))
        current_request.set(record)
        id_header = (b"x-request-id", record.id.encode("latin-1"))
        is_complete = False

        async def observed_send(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                # A copy: an app may send the same message to everybody.
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, observed_send)
        finally:
            self._metrics.in_flight.dec()
            status = record.status if is_complete else record.failed_status
            self._record(scope, CLIENT_CLOSED_REQUEST if status is None else status, record)

    def _record(self, scope: Scope, status: int, record: RequestRecord) -> None:
        seconds = time.perf_counter() - record.started
        route = getattr(scope.get("route"), "path", None) or self._path(scope)
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else "other"
        self._metrics.count(method, route, status, seconds)
        fields: dict[str, Any] = record.notes
        if record.error_code is not None:
            fields["error"] = record.error_code
            if status in _REFUSED or refusal_of(scope) is not None:
                self._metrics.refuse(record.error_code)
        log = self._log.debug if route in QUIET_PATHS else self._log.info
        log("request", method=method, route=route, status=status, ms=round(seconds * 1000, 1), id=record.id, **fields)

    def _path(self, scope: Scope) -> str:
        """The route of a request that was refused before it was routed, as far as its path alone tells it."""
        if self._paths is None:
            self._paths = frozenset(getattr(route, "path", "") for route in scope["app"].routes)
        return scope["path"] if scope["path"] in self._paths else "unmatched"
