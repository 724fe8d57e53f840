"""vLLM, played by a test."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from services.inference.engine import SequenceRequest
from services.inference.engine.ipc import Ready
from services.inference.engine.vllm.engine import VllmEngine
from services.inference.engine.vllm.stats import VllmStats
from tests.services.inference.engine.fake_process import READY, FakeProcess, launch_of


class FakeVllm(FakeProcess):
    """A `VllmProcess` that yields the outputs that a test puts into its queues."""

    valid_ids = None

    def __init__(self, ready: Ready | Exception = READY) -> None:
        super().__init__(ready)
        self.is_dead = False
        self.stats = VllmStats()
        self.aborted: list[str] = []
        self.outputs: dict[str, asyncio.Queue[Any]] = {}

    async def generate(self, request: SequenceRequest, name: str) -> AsyncIterator[Any]:
        queue = self.outputs.setdefault(name, asyncio.Queue())
        try:
            while True:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finished:
                    return
        except asyncio.CancelledError:
            self.aborted.append(name)
            raise

    def put(self, name: str, *tokens: int, finish: str | None = None) -> None:
        completion = SimpleNamespace(token_ids=list(tokens), logprobs=None, finish_reason=finish)
        metrics = SimpleNamespace(scheduled_ts=time.monotonic())
        output = SimpleNamespace(
            outputs=[completion],
            finished=finish is not None,
            num_cached_tokens=16,
            prompt_logprobs=None,
            metrics=metrics,
        )
        self.stats.record(None, None)
        self.outputs.setdefault(name, asyncio.Queue()).put_nowait(output)

    def fail(self, name: str, error: Exception) -> None:
        self.outputs.setdefault(name, asyncio.Queue()).put_nowait(error)

    # What either engine's process does

    def die(self) -> None:
        self.is_dead = True
        for name in self.outputs:
            self.fail(name, RuntimeError("dead"))

    def begin(self, request_id: int) -> None:
        self.put(f"{request_id}-0", 7)

    def answer(self, request_id: int, token: int) -> None:
        self.put(f"{request_id}-0", token, finish="stop")


@asynccontextmanager
async def vllm_of(
    *processes: FakeVllm | Exception, max_sequences: int = 6, **limits: float
) -> AsyncIterator[VllmEngine]:
    stats = VllmStats()
    for process in processes:
        if isinstance(process, FakeVllm):
            process.stats = stats
    launch = launch_of([*processes])
    engine = VllmEngine(launch(), READY, launch, stats, max_sequences=max_sequences, **limits)
    waits: list[float] = []
    await engine.start(waits.append)
    try:
        yield engine
    finally:
        engine.close()
        await asyncio.sleep(0)
    assert all(wait >= 0 for wait in waits)
