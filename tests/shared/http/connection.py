"""A connection whose reads are as large as a test wants them, without a socket."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from shared.http.server.protocol import RequestProtocol


class Transport:
    """What a protocol writes to."""

    def __init__(self) -> None:
        self.written = b""
        self.ended = False
        self.closed = False
        self.reads = True

    def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.closed = True

    close = abort

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        """Nothing is known."""


def protocol_of(app: FastAPI, transport: Transport, *, client_timeout: float = 600) -> RequestProtocol:
    """The protocol of a connection that was just made, on the running event loop."""
    config = uvicorn.Config(app, log_config=None)
    config.load()
    protocol = RequestProtocol(config=config, server_state=ServerState(), app_state={}, client_timeout=client_timeout)
    protocol.connection_made(transport)  # type: ignore[arg-type]
    return protocol


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+) ", answer)


async def answers(app: FastAPI, reads: Iterable[bytes], count: int) -> bytes:
    """What comes back of a connection that gets these reads one by one: `count` answers, and what follows at once."""
    transport = Transport()
    protocol: Any = protocol_of(app, transport)
    for data in reads:
        protocol.data_received(data)
        await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
        if len(statuses(transport.written)) >= count:
            break
    for _ in range(20):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    return transport.written
