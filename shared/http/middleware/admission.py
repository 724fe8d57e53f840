"""Refuse requests that cannot be served now before their bodies are read."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response


class AdmissionMiddleware:
    """Answers with the `ApiError` that `refusal(method, path)` returns, if any, without reading the body.

    Under overload, parsing requests that are refused anyway would take processor time from those being served.
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
