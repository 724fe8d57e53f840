"""The way of a request to its route: refused by its head, limited in its body, and answered if it fails."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.http.errors import ApiError, error_response, internal_error, server_refusal
from shared.http.middleware.body_limit import Exchange, MemoryBudget
from shared.http.request_context import current_request

_log = structlog.get_logger("ownlm.http")

HeadCheck: TypeAlias = Callable[[Scope, Mapping[bytes, bytes]], ApiError | None]
"""Why a request is refused, from its scope and its headers by name; None if it is not."""


class AdmissionMiddleware:
    """Refuses a request by its head, or passes it on within the limits of `Exchange`.

    Exceptions become responses here: Starlette would send them outside of all middleware, without the request's id and
    the CORS headers.

    Args:
        app: The app.
        checks: After what the server refused, the first one that returns an error decides. No body is read before.
        max_body_bytes: The largest request body.
        budget: For large bodies and responses of all requests together.
    """

    def __init__(self, app: ASGIApp, checks: Sequence[HeadCheck], max_body_bytes: int, budget: MemoryBudget) -> None:
        self._app = app
        self._checks = checks
        self._max_body_bytes = max_body_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = current_request.get()
        assert context is not None
        error = server_refusal(scope)
        for check in self._checks:
            error = error or check(scope, context.headers)
        if error is not None:
            await error_response(error)(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._max_body_bytes, self._budget)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ApiError as raised:
            # Its traceback holds the body, and has cycles: a future's error has the frame that awaits it. Megabytes
            # would wait for the collector with each refusal.
            error = raised.with_traceback(None)
        except Exception:
            _log.exception("request failed")
            error = internal_error()
        finally:
            exchange.end()
        # After the first byte of a response, the server can only close the connection.
        if error is not None and context.status is None:
            await error_response(error)(scope, receive, send)
