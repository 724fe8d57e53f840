"""A response's head and the beginning of its body in one packet."""

import asyncio
from collections.abc import Callable

_CHUNKED = b"transfer-encoding: chunked\r\n"
_COPIED_BYTES = 1 << 16  # up to this size a copy costs less than a second buffer


class JoinedWrites:
    """A connection's transport, as one response writes to it.

    uvicorn writes the head by itself, which costs a second system call, and wakes the client for nothing. Here it waits
    for what follows at once, and leaves alone at the end of the event loop's turn if nothing does.

    Args:
        transport: The connection's own.
        loop: Its event loop.
        close: Closes the connection once all is written.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, close: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._close = close
        self._head: bytes | None = None
        self._is_first = True

    def write(self, data: bytes) -> None:
        """Write, or hold back where this is the head."""
        if self._is_first:
            self._is_first = False
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head is None:
            self._transport.write(data)
        else:
            head, self._head = self._head, None
            if len(data) <= _COPIED_BYTES:
                self._transport.write(head + data)
            else:
                self._transport.writelines([head, data])

    def close(self) -> None:
        """Close the connection once all is written."""
        self._flush()
        self._close()

    def is_closing(self) -> bool:
        """Whether the connection closes, or is closed."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)


class UnchunkedWrites(JoinedWrites):
    """The same for HTTP/1.0, which knows no chunks: there the end of the connection is that of the answer.

    uvicorn sends chunks to such clients too, each in one write of its own (RFC 9112, 6.1 forbids them).
    """

    _is_chunked = False

    def write(self, data: bytes) -> None:
        """Write a head, or what a chunk holds."""
        if self._is_chunked:
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        elif self._is_first:
            self._is_chunked = _CHUNKED in data
            data = data.replace(_CHUNKED, b"")
        super().write(data)
