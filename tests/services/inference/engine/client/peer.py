"""The engine process' side of the socket, played by a test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from services.inference.engine import EngineClient, EngineStats, TokenEvent
from services.inference.engine.ipc import MessageReader, Ready, StepOutput, encode
from services.inference.engine.types import CoreEvent, StartEvent
from tests.services.inference.engine.fake_process import READY, FakeProcess, launch_of, until


class Peer(FakeProcess):
    """An engine process whose other end is in the test's hands."""

    def __init__(self, ready: Ready | Exception = READY) -> None:
        super().__init__(ready)
        self.connection, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self._reader = MessageReader()
        self._commands: list[Any] = []

    def end(self) -> str:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        return super().end()

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

    # What either engine's process does

    def die(self) -> None:
        self.theirs.close()

    def begin(self, request_id: int) -> None:
        self.say(StartEvent(request_id, 0, 0.0))

    def answer(self, request_id: int, token: int) -> None:
        self.say(TokenEvent(request_id, 0, token, None, "stop"))


@asynccontextmanager
async def client_of(*peers: Peer | Exception, max_queue: int = 4, **limits: float) -> AsyncIterator[EngineClient]:
    launch = launch_of([*peers])
    engine = EngineClient(launch(), READY, launch, max_queue=max_queue, **limits)
    await engine.start()
    try:
        yield engine
    finally:
        engine.close()
        for peer in peers:
            if isinstance(peer, Peer):
                peer.end()
                # Its transport closes in the loop's next turn.
                await until(lambda peer=peer: peer.connection.fileno() < 0)
                peer.theirs.close()
