"""What one response writes to: the connection's transport, with an end of its own."""

import asyncio
import sys
from collections.abc import Callable

_CHUNKED = b"transfer-encoding: chunked\r\n"


class ResponseTransport:
    """A connection's transport, as one response uses it.

    Args:
        transport: The connection's own.
        close: Closes the connection once all is written.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write: Callable[[bytes], None] = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class UnchunkedTransport(ResponseTransport):
    """The same for HTTP/1.0, which has no chunks: there the end of the connection is that of the answer.

    uvicorn sends chunks to such clients too, each in one write of its own (RFC 9112, 6.1 forbids them).
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__(transport, close)
        self._transport = transport
        self._is_chunked: bool | None = None
        self.write = self._write_unchunked

    def _write_unchunked(self, data: bytes) -> None:
        """Write a head, or what a chunk holds."""
        if self._is_chunked is None:
            self._is_chunked = _CHUNKED in data
            data = data.replace(_CHUNKED, b"", 1)
        elif self._is_chunked:
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size or b"0", 16)]
        self._transport.write(data)


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """What the system has sent or will send and the peer has not acknowledged; 0 where the system does not say."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return 0
    import fcntl
    import termios

    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ of tcp(7)
    return int.from_bytes(answer, sys.byteorder)
