"""Time limits of a connection: for the client to send a request, and to read a response."""

import asyncio
import sys
from collections.abc import Callable


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
