"""Size limits for request bodies and responses: for each, and for all in memory together."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            message = f"the answer has {size:,} bytes, the limit is {self._max_bytes:,} (OWNLM_MAX_BYTES_IN_FLIGHT)"
            raise ApiError(400, f"{message}: send several requests", code="answer_too_large")
        if self.held + size > self._max_bytes:
            message = (
                f"the bodies and answers in memory have {self.held:,} bytes, the limit is {self._max_bytes:,} "
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


class BodyLimitMiddleware:
    """Answers 413 to bodies over `max_bytes`, and 503 if `budget` has no room for a body or a response.

    The length is checked by `Content-Length` if it is present, and while reading. Large responses are sent in parts,
    as the client reads them, and count until they are sent; so does each large part of a stream, of which only the
    first can still be refused. Pure ASGI, so that it neither buffers a stream nor hides a disconnect. `Connection:
    close` makes the server discard what the client still sends.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, budget: MemoryBudget) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, counting the bytes of its body and its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            error = self._too_large(f"the body has {int(announced):,} bytes")
            await error_response(error)(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._budget)

        async def counted_receive() -> Message:
            message = await exchange.receive()
            if exchange.received > self._max_bytes:
                raise self._too_large("the body is larger")
            return message

        try:
            await self._app(scope, counted_receive, exchange.send)
        finally:
            exchange.end()

    def _too_large(self, fault: str) -> ApiError:
        message = f"{fault}, the limit is {self._max_bytes:,} (OWNLM_MAX_BODY_BYTES)"
        return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})


class _Exchange:
    """What one request has received and holds, and what it sends."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, budget: MemoryBudget) -> None:
        self.received = 0
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
            ApiError: 499 if the client disconnects within it, the error with which the server refuses the request, or
                503 if all bodies together are too large.
        """
        message = await self._receive()
        refusal = server_refusal(self._scope)
        if refusal is not None and not self._is_complete:
            raise refusal
        if message["type"] == "http.request":
            self._hold(len(message.get("body", b"")))
            self._is_complete = not message.get("more_body", False)
        elif not self._is_complete:
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client disconnected before its request was complete")
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, in parts of its own where it is large."""
        if message["type"] == "http.response.start":
            self._start = message
        elif not self._is_refused:
            await self._send_body(message)

    async def _send_body(self, message: Message) -> None:
        start, self._start = self._start, None
        counted = max(0, len(message.get("body", b"")) - _SENT_AT_ONCE)
        try:
            self._budget.acquire(counted) if start is not None else self._budget.count(counted)
        except ApiError as error:
            self._is_refused = True
            await error_response(error)(self._scope, self._receive, self._send)
            return
        try:
            if start is not None:
                await self._send(start)
            if counted:
                message = await self._send_in_parts(message)
            await self._send(message)
        finally:
            self._budget.release(counted)

    async def _send_in_parts(self, message: Message) -> Message:
        """Send all but the last part, which is returned."""
        body = memoryview(message["body"])
        while len(body) > _SENT_AT_ONCE:
            await self._send({"type": "http.response.body", "body": bytes(body[:_SENT_AT_ONCE]), "more_body": True})
            body = body[_SENT_AT_ONCE:]
        return {**message, "body": bytes(body)}

    def end(self) -> None:
        """Give back what was held."""
        self._budget.release(self._held)
        self._held = 0

    def _hold(self, size: int) -> None:
        if self.received + size <= _FREE_BYTES:
            self.received += size
            return
        before = max(0, self.received - _FREE_BYTES)
        self.received += size
        size = max(0, self.received - _FREE_BYTES) - before
        self._budget.acquire(size)
        self._held += size
