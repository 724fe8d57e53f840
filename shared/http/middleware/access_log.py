"""One log line and one set of measurements for each request. Never the content of a request."""

import logging
import time
from collections.abc import Awaitable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.errors import CLIENT_CLOSED_REQUEST, server_refusal
from shared.http.metrics import HttpMetrics
from shared.http.probes import QUIET_PATHS
from shared.http.request_context import RequestContext, current_request

_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REFUSED = frozenset({401, 408, 413, 429, 503})


class AccessLogMiddleware:
    """Gives each request an id, logs it and measures it. Pure ASGI: streams pass through unchanged.

    A client's `X-Request-ID` is kept, otherwise one is generated; the response and the log line carry it. A response
    that the client did not wait for is counted as 499.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._paths: frozenset[str] | None = None
        self._log = structlog.get_logger("ownlm.http").bind()  # once: an unbound logger is bound again at each use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(dict(scope["headers"]))
        current_request.set(context)
        id_header = (b"x-request-id", context.id.encode("latin-1"))
        is_complete = False

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                context.status = message["status"]
                # A copy: an app may use one message for several responses.
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            return send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._metrics.in_flight.dec()
            status = context.status if is_complete else context.failed_status
            self._log_request(scope, CLIENT_CLOSED_REQUEST if status is None else status, context)

    def _log_request(self, scope: Scope, status: int, context: RequestContext) -> None:
        seconds = time.perf_counter() - context.started
        route = getattr(scope.get("route"), "path", None) or self._unrouted_path(scope)
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else "other"
        self._metrics.count_request(method, route, status, seconds)
        error = context.error_code
        if error is not None and (status in _REFUSED or server_refusal(scope) is not None):
            self._metrics.count_refusal(error)
        level = logging.DEBUG if route in QUIET_PATHS else logging.INFO
        if self._log.is_enabled_for(level):
            fields = context.log_fields if error is None else {**context.log_fields, "error": error}
            ms = round(seconds * 1000, 1)
            self._log.log(level, "request", method=method, route=route, status=status, ms=ms, id=context.id, **fields)

    def _unrouted_path(self, scope: Scope) -> str:
        """The route of a request that was refused before routing, as far as its path alone determines it."""
        if self._paths is None:
            self._paths = frozenset(getattr(route, "path", "") for route in scope["app"].routes)
        return scope["path"] if scope["path"] in self._paths else "unmatched"
