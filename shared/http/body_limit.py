"""Refuse request bodies over a limit, before and while they are read."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.disconnect import CLIENT_CLOSED_REQUEST
from shared.http.errors import ApiError, error_response


class BodyLimitMiddleware:
    """Answers 413 to bodies over `max_bytes`, from `Content-Length` where it is given, else while reading.

    Pure ASGI, so that it neither buffers a stream nor hides that a client has left. `Connection: close` makes the
    server drop what the client still sends.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, counting what it sends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            error = self._too_large(f"the body has {int(announced):,} bytes")
            await error_response(error)(scope, receive, send)
            return
        received = 0
        complete = False

        async def counted_receive() -> Message:
            nonlocal received, complete
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            elif not complete:
                raise ApiError(CLIENT_CLOSED_REQUEST, "the client left before its request was complete")
            if received > self._max_bytes:
                raise self._too_large("the body is larger")
            return message

        await self._app(scope, counted_receive, send)

    def _too_large(self, fault: str) -> ApiError:
        message = f"{fault}, the limit is {self._max_bytes:,} (OWNLM_MAX_BODY_BYTES)"
        return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
