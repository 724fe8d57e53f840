"""Parts of a connection: the transport that its responses write to, and its time limits."""

import asyncio
import sys
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


class Timeout:
    """Calls `expire` after `seconds`, unless it is stopped before.

    Args:
        loop: The event loop.
        seconds: The time.
        expire: What to call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and has neither ended nor been stopped."""
        return self._timer is not None

    def start(self) -> None:
        """The time begins, again if it runs."""
        self.stop()
        self._timer = self._loop.call_later(self._seconds, self._end)

    def stop(self) -> None:
        """Do not call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._expire()


class ReaderTimeout(Timeout):
    """Calls `expire` if the client reads nothing of what is written to `transport` for `seconds`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        expire: Callable[[], None],
        transport: asyncio.Transport,
    ) -> None:
        super().__init__(loop, seconds, expire)
        self._transport = transport
        self._unsent = 0

    def start(self) -> None:
        """The time begins, again if it runs."""
        super().start()
        self._unsent = self._unsent_bytes()

    def _end(self) -> None:
        if self._unsent_bytes() < self._unsent:
            self.start()
        else:
            super()._end()

    def _unsent_bytes(self) -> int:
        """Bytes written but not acknowledged: the event loop alone does not see the progress of a slow client."""
        return self._transport.get_write_buffer_size() + _unacknowledged_bytes(self._transport)


def _unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes in the system's send buffer that the peer has not acknowledged; 0 where the system does not report them."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return 0
    import fcntl
    import termios

    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ of tcp(7)
    return int.from_bytes(answer, sys.byteorder)
