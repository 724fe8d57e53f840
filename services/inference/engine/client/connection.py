"""The HTTP process' end of the socket to the engine process, on the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from services.inference.engine.ipc import Command, MessageReader, encode


class Connection(asyncio.Protocol):
    """Sends commands, receives messages, and reports the other side's end.

    This is a transport rather than a reader of the socket (`loop.add_reader`), since uvloop does not report to a reader
    that the other side is gone where that side had not read all that was sent to it.

    Args:
        on_message: Called with each message.
        on_lost: Called once when the other side has closed, or has died, unless `close` came first.
    """

    def __init__(self, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = MessageReader()
        self._transport: asyncio.Transport | None = None
        self._closed = False

    async def open(self, connection: socket.socket) -> None:
        """Start receiving; takes over the socket."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of commands that wait for room in the socket."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, command: Command) -> None:
        """Send a command without waiting; it is lost if the other side has closed."""
        assert self._transport is not None, "open it first"
        self._transport.write(encode(command))

    def close(self) -> None:
        """Close at once; discards what is unsent."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        if self._closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for message in self._reader.feed(data):
            self._on_message(message)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        assert self._transport is not None
        self._transport.abort()  # nothing will read what is unsent

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process' exit code says more
        """See `asyncio.Protocol`."""
        if not self._closed:
            self._on_lost()
