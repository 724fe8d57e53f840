"""Error responses outside of the routes: refusals by the server, refused headers, and 500."""

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response, server_refusal
from shared.http.middleware.header_checks import check_headers
from shared.http.request_context import current_request

_log = structlog.get_logger("ownlm.http")


class ErrorMiddleware:
    """Sends what the server refused, refuses ambiguous headers, and turns exceptions into 500.

    Starlette would send 500 outside of all middleware, without the request's id and the CORS headers.

    Args:
        app: The app.
        allowed_hosts: See `check_headers`.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: frozenset[str] | None) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it without reading its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = server_refusal(scope) or check_headers(scope, self._allowed_hosts)
        if error is None:
            try:
                await self._app(scope, receive, send)
            except Exception:
                _log.exception("request failed")
                context = current_request.get()
                if context is not None and context.status is not None:
                    return  # the response has begun: the server closes the connection
                error = ApiError(500, "internal error; the server's log has the details")
        if error is not None:
            await error_response(error)(scope, receive, send)
