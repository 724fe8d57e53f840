"""The transport that responses write to: the connection's, with its own way to close."""

import asyncio
from collections.abc import Callable

_CONTINUE = b"HTTP/1.1 100"
_CHUNKED = b"transfer-encoding: chunked\r\n"


class ResponseTransport:
    """A connection's transport, as its responses use it, one after the other.

    uvicorn writes the head separately. Here it is held back until the body follows, as ASGI requires, which saves a
    system call and wakes the client once.

    Args:
        transport: The connection's own.
        close: Closes the connection after all data is written.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._has_begun = False
        self._head = b""  # held back for the body

    def write(self, data: bytes) -> None:
        """Write, or hold back the head."""
        if self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        elif self._has_begun or data.startswith(_CONTINUE):
            self._transport.write(data)
        else:
            self._has_begun = True
            self._head = data

    def close(self) -> None:
        """Close the connection after all data is written."""
        self.end_response()
        self._close()

    def is_closing(self) -> bool:
        """Whether the connection is closing or closed."""
        return self._transport.is_closing()

    def end_response(self) -> None:
        """The response is complete; the one to HEAD has no body."""
        self._has_begun = False
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class UnchunkedTransport(ResponseTransport):
    """The same for the one response of an HTTP/1.0 connection, which has no chunks: closing it ends the response.

    uvicorn sends chunks to such clients too, each in one write (RFC 9112, 6.1 forbids them).
    """

    _is_chunked = False

    def write(self, data: bytes) -> None:
        """Write a head, or the content of a chunk."""
        if self._is_chunked:
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        elif not self._has_begun:
            self._is_chunked = _CHUNKED in data
            data = data.replace(_CHUNKED, b"", 1)
        super().write(data)
