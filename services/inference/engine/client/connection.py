"""The HTTP process' end of the socket to the model's process, on the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from services.inference.engine.ipc import Command, MessageReader, encode


class Connection(asyncio.Protocol):
    """Commands go, messages come, and the other side's end is told.

    This is a transport rather than a reader of the socket (`loop.add_reader`), since uvloop never tells a reader that
    the other side is gone where that side had not read all that was sent to it.

    Args:
        on_message: Told each message.
        on_end: Told once that the other side has closed, or is dead, unless `close` came first.
    """

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._reader = MessageReader()
        self._transport: asyncio.Transport | None = None
        self._closed = False

    async def open(self, connection: socket.socket) -> None:
        """Begin to listen; the socket belongs to this from here on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    @property
    def unsent_bytes(self) -> int:
        """What the other side has no room for yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, command: Command) -> None:
        """Send a command, without waiting; one to a side that has closed is lost."""
        assert self._transport is not None, "open it first"
        self._transport.write(encode(command))

    def close(self) -> None:
        """Stop at once, whatever is under way."""
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
        self._transport.abort()  # what is unsent is of no use to anybody

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process' end tells more
        """See `asyncio.Protocol`."""
        if not self._closed:
            self._on_end()
