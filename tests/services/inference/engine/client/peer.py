"""The worker's side of the socket, played by a test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from services.inference.engine import (
    EngineClient,
    EngineStats,
    RequestHandle,
    SequenceRequest,
)
from services.inference.engine.errors import LoadError
from services.inference.engine.ipc import MessageReader, Ready, StepOutput, encode
from services.inference.engine.types import CoreEvent
from shared.lm import SamplingParams

READY = Ready("a model", "cpu", "float32", context_length=128, num_blocks=16, num_slots=2)
REQUEST = SequenceRequest((1, 2, 3), SamplingParams(), 5, frozenset())


class Peer:
    """A worker whose other end is in the test's hands."""

    def __init__(self, ready: Ready | LoadError = READY) -> None:
        self.connection, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.closed = self.ended = False
        self._ready = ready
        self._reader = MessageReader()
        self._commands: list[Any] = []

    def wait_ready(self) -> Ready:
        if isinstance(self._ready, LoadError):
            raise self._ready
        return self._ready

    def end(self) -> str:
        self.ended = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        return "by a test"

    def close(self) -> None:
        self.closed = True
        self.end()

    def say(self, *events: CoreEvent, stats: EngineStats | None = None) -> None:
        self.theirs.sendall(encode(StepOutput(list(events), stats or EngineStats(), 0.0)))

    async def heard(self, count: int) -> list[Any]:
        """The next `count` commands."""
        while len(self._commands) < count:
            try:
                self._commands += self._reader.feed(self.theirs.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        commands, self._commands = self._commands[:count], self._commands[count:]
        return commands


@asynccontextmanager
async def client_of(*peers: Peer, max_queue: int = 4, **limits: float) -> AsyncIterator[EngineClient]:
    left = list(peers)
    engine = EngineClient(left.pop(0), READY, lambda: left.pop(0), max_queue=max_queue, **limits)
    await engine.start()
    try:
        yield engine
    finally:
        engine.close()
        for peer in peers:
            peer.end()
            await until(lambda peer=peer: peer.connection.fileno() < 0)  # its transport closes in the loop's next turn
            peer.theirs.close()


def run(test: Callable[[], Awaitable[None]], on: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    async def within_limits() -> None:
        await asyncio.wait_for(test(), 240)

    on(within_limits())


async def read(handle: RequestHandle) -> list[Any]:
    return [event async for events in handle for event in events]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
