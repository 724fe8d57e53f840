"""Answer 500 for what the app did not catch."""

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.errors import ApiError, error_response

_log = structlog.get_logger("ownlm.http")


class InternalErrorMiddleware:
    """Logs an exception with its traceback, and answers 500 where the answer has not begun.

    Starlette does the same outside of all middleware, where the answer would lack the request's id and what lets a
    browser's page read it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            if scope["type"] != "http":
                raise
            _log.exception("request failed")
            if not has_begun:
                error = ApiError(500, "internal error; the server's log has the details")
                await error_response(error)(scope, receive, send)
