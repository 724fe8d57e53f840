"""Engine processes that a test plays itself, for either engine."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from services.inference.engine import RequestHandle, SequenceRequest
from services.inference.engine.ipc import Ready
from shared.lm import SamplingParams

READY = Ready("a model", "cpu", "float32", context_length=128, num_blocks=16, num_slots=2)
REQUEST = SequenceRequest((1, 2, 3), SamplingParams(), 5, frozenset())


class FakeProcess:
    """Becomes ready, or fails to, as the test says."""

    pid = None

    def __init__(self, ready: Ready | Exception = READY) -> None:
        self.closed = self.ended = False
        self._ready = ready

    def wait_ready(self) -> Ready:
        if isinstance(self._ready, Exception):
            raise self._ready
        return self._ready

    def end(self) -> str:
        self.ended = True
        return "by a test"

    def close(self) -> None:
        self.closed = True
        self.end()


def launch_of(processes: list[Any]) -> Callable[[], Any]:
    """Launch them one after the other; raise what is an error."""
    left = list(processes)

    def launch() -> Any:
        process = left.pop(0)
        if isinstance(process, Exception):
            raise process
        return process

    return launch


def run(test: Callable[[], Awaitable[None]], on: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    async def within_limits() -> None:
        await asyncio.wait_for(test(), 240)

    on(within_limits())


async def read(handle: RequestHandle) -> list[Any]:
    return [event async for events in handle for event in events]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
