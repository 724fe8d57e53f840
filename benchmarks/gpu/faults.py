"""A fault of the GPU in the engine's process, and the process that replaces it."""

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

from benchmarks.serving.model import make_model
from services.inference.engine import EngineClient, EngineConfig, ModelProcess, SequenceRequest, TokenEvent
from shared.lm import ModelConfig, SamplingParams

_SECONDS = 90.0  # for a start


def restart_after_fault(config: ModelConfig, device: str, work: Path) -> tuple[bool, str]:
    """Send an id that the model does not have, which the HTTP layer would refuse: on CUDA an assertion on the device.

    On a CPU, where nothing would notice it, the process is killed instead.

    Returns:
        Whether the sequence fails, another process takes over, and gives the tokens that the first one gave; and what
        was seen.
    """
    settings = EngineConfig(make_model(work / "model", config), device=device, dtype="float32", max_batch=4)
    process = ModelProcess(settings, load_timeout=_SECONDS)
    ready = process.wait_ready()
    engine = EngineClient(process, ready, partial(ModelProcess, settings, load_timeout=_SECONDS), max_queue=4)
    return asyncio.run(_ask(engine, config.vocab_size + 10**6 if device == "cuda" else None))


async def _ask(engine: EngineClient, wrong_id: int | None) -> tuple[bool, str]:
    await engine.start()
    try:
        before, first_process = await _tokens(engine, 1), engine.worker_pid
        begun = time.monotonic()
        try:
            if wrong_id is None and first_process is not None:
                os.kill(first_process, signal.SIGKILL)
            await _tokens(engine, wrong_id or 1)
        except Exception as error:  # reported below, of any type
            failure = f"{type(error).__name__}: {error}"
        else:
            failure = ""
        while engine.worker_pid in {first_process, None} or engine.fault is not None:
            if time.monotonic() - begun > _SECONDS:
                return False, f"{failure or 'the sequence did not fail'}; no other process after {_SECONDS:.0f} s"
            await asyncio.sleep(0.05)
        took = time.monotonic() - begun
        same = await _tokens(engine, 1) == before
        seen = f"{failure}; served again after {took:.1f} s, {'the same' if same else 'OTHER'} tokens"
        return bool(failure) and same, seen
    finally:
        engine.close()


async def _tokens(engine: EngineClient, token: int) -> list[int]:
    request = SequenceRequest((token,), SamplingParams(temperature=0.0), 8, frozenset())
    tokens: list[int] = []
    async for events in engine.submit([request]):
        tokens += [event.token for event in events if isinstance(event, TokenEvent)]
    return tokens
