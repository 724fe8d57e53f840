"""Refuse what would be refused anyway before it costs anything."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response


class AdmissionMiddleware:
    """Answers with `refusal` of a request's method and path, where it gives one, without reading the body.

    In a storm of requests, parsing those that find no room would take the time of those that are being served.
    """

    def __init__(self, app: ASGIApp, refusal: Callable[[str, str], ApiError | None]) -> None:
        self._app = app
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        error = self._refusal(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        await error_response(error)(scope, receive, send)
