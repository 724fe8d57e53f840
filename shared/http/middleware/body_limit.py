"""Size limits for request bodies and responses: for each, and for all in memory together."""

from collections.abc import Mapping

from starlette.types import Message, Receive, Scope, Send

from shared.http.errors import CLIENT_CLOSED_REQUEST, ApiError, error_response, server_refusal

# What a request may hold outside of the common budget, so that small requests are served beside large ones.
_FREE_BYTES = 1 << 16
_SENT_AT_ONCE = 1 << 18


class MemoryBudget:
    """The most bytes of large bodies and responses that a process holds, over all its requests.

    Attributes:
        held: The bytes held now.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    def acquire(self, size: int) -> None:
        """Take `size` more bytes.

        Raises:
            ApiError: 503 with `Retry-After`, if they are not available now; 400, if they exceed the whole budget.
        """
        if size > self._max_bytes:
            message = f"the response of {size:,} bytes exceeds the limit of {self._max_bytes:,}"
            fix = "(OWNLM_MAX_BYTES_IN_FLIGHT); send several requests"
            raise ApiError(400, f"{message} {fix}", code="answer_too_large")
        if self.held + size > self._max_bytes:
            message = (
                f"request and response bodies take {self.held:,} of {self._max_bytes:,} bytes "
                "(OWNLM_MAX_BYTES_IN_FLIGHT); try again soon"
            )
            raise ApiError(503, message, code="memory_budget", headers={"Connection": "close", "Retry-After": "1"})
        self.held += size

    def count(self, size: int) -> None:
        """Count `size` bytes that can no longer be refused; beyond the limit, others are refused meanwhile."""
        self.held += size

    def release(self, size: int) -> None:
        """Return `size` bytes."""
        self.held -= size


def check_length(max_bytes: int, _scope: Scope, headers: Mapping[bytes, bytes]) -> ApiError | None:
    """Refuse a body whose announced length is more than `max_bytes`."""
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        return _too_large(f"the body of {int(announced):,} bytes", max_bytes)
    return None


class Exchange:
    """What one request receives and sends, within the limits of its size and of the memory of all requests.

    A response's head is sent with the first part of its body. Large bodies are sent in parts, as the client reads them,
    and count until they are sent; of a stream, only the first part can still be refused. Streams are not buffered, and
    a disconnect is passed on.

    Args:
        scope: The request's.
        receive: The server's.
        send: The server's.
        max_bytes: The largest request body.
        budget: Shared with all other requests.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_bytes: int, budget: MemoryBudget) -> None:
        self._received = 0
        self._max_bytes = max_bytes
        self._scope = scope
        self._receive = receive
        self._send = send
        self._budget = budget
        self._held = 0
        self._is_complete = False
        self._is_refused = False
        self._start: Message | None = None  # held back until the answer's size is known

    async def receive(self) -> Message:
        """The next part of the body.

        Raises:
            ApiError: 499 if the client disconnects within it, the error with which the server refuses the request, 413
                if it is too large, or 503 if all bodies together are.
        """
        message = await self._receive()
        if self._is_complete:
            return message
        refusal = server_refusal(self._scope)
        if refusal is not None:
            raise refusal
        if message["type"] == "http.request":
            self._hold(len(message.get("body", b"")))
            self._is_complete = not message.get("more_body", False)
        else:
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client disconnected before its request was complete")
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response, in parts of its own where it is large."""
        if message["type"] == "http.response.start":
            self._start = message
        elif self._is_refused:
            return
        elif len(message.get("body", b"")) > _SENT_AT_ONCE:
            await self._send_large(message)
        else:
            if (start := self._start) is not None:
                self._start = None
                await self._send(start)
            await self._send(message)

    async def _send_large(self, message: Message) -> None:
        body = memoryview(message["body"])
        counted = len(body) - _SENT_AT_ONCE
        try:
            if self._start is not None:
                self._budget.acquire(counted)
            else:
                self._budget.count(counted)
        except ApiError as error:
            self._is_refused = True
            await error_response(error)(self._scope, self._receive, self._send)
            return
        try:
            while len(body) > _SENT_AT_ONCE:
                await self.send({"type": "http.response.body", "body": bytes(body[:_SENT_AT_ONCE]), "more_body": True})
                body = body[_SENT_AT_ONCE:]
            await self.send({**message, "body": bytes(body)})
        finally:
            self._budget.release(counted)

    def end(self) -> None:
        """Give back what was held."""
        self._budget.release(self._held)
        self._held = 0

    def _hold(self, size: int) -> None:
        self._received += size
        if self._received > self._max_bytes:
            raise _too_large("the body", self._max_bytes)
        if (counted := self._received - _FREE_BYTES - self._held) > 0:
            self._budget.acquire(counted)
            self._held += counted


def _too_large(body: str, max_bytes: int) -> ApiError:
    message = f"{body} exceeds the limit of {max_bytes:,} bytes (OWNLM_MAX_BODY_BYTES)"
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
