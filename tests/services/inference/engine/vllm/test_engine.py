"""`VllmEngine` on a fake vLLM. test_contract.py tests it on a real one."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.inference.engine import (
    EngineError,
    EngineUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    SequenceRequest,
    TokenEvent,
    UnsupportedFieldError,
)
from services.inference.engine.vllm.engine import VllmEngine
from shared.lm import SamplingParams
from tests.services.inference.engine.fake_process import READY, until
from tests.services.inference.engine.vllm.fake_vllm import FakeVllm, vllm_of


def request(**changes: Any) -> SequenceRequest:
    values = {"prompt_ids": (1, 2, 3), "params": SamplingParams(seed=1), "max_tokens": 4, "stop_ids": frozenset()}
    return SequenceRequest(**{**values, "arrived_at": time.perf_counter(), **changes})


def run(test: Callable[[VllmEngine, FakeVllm], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        vllm = FakeVllm()
        async with vllm_of(vllm, **{"max_sequences": 3, **settings}) as engine:
            await test(engine, vllm)
        assert vllm.closed

    asyncio.run(asyncio.wait_for(main(), 20))


def test_events_come_as_from_our_own_engine() -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        handle = engine.submit([request(), request()])
        vllm.put("1-0", 7)
        vllm.put("1-0", 8, 9, finish="stop")
        vllm.put("1-1", 5, finish="length")
        events = [event async for part in handle for event in part]
        first = [event for event in events if event.sequence_index == 0]
        assert first[0].num_cached_tokens == 16  # type: ignore[union-attr]
        assert first[1:] == [TokenEvent(1, 0, 7), TokenEvent(1, 0, 8), TokenEvent(1, 0, 9, None, "stop")]
        assert events[-1] == TokenEvent(1, 1, 5, None, "length")
        assert handle.started_at is not None
        assert engine.stats().num_waiting == engine.stats().num_running == 0

    run(test)


def test_what_is_dropped_or_canceled_is_aborted() -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        handle = engine.submit([request(), request(), request()])
        await asyncio.sleep(0)
        handle.drop(1)
        await until(lambda: vllm.aborted == ["1-1"])
        handle.cancel()
        await until(lambda: sorted(vllm.aborted) == ["1-0", "1-1", "1-2"])
        engine.check_room(3)

    run(test)


def test_there_is_room_for_as_many_as_the_settings_say() -> None:
    async def test(engine: VllmEngine, _vllm: FakeVllm) -> None:
        engine.submit([request(), request()])
        with pytest.raises(QueueFullError, match=r"2 sequences are running or waiting \(limit: 3\)"):
            engine.submit([request(), request()])
        assert engine.stats().num_waiting == 2

    run(test)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"queue_timeout": 0.05}, QueueTimeoutError), ({"request_timeout": 0.05}, RequestTimeoutError)],
)
def test_what_takes_too_long_is_ended_and_aborted(settings: dict[str, Any], error: type[EngineError]) -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        handle = engine.submit([request()])
        with pytest.raises(error):
            await anext(handle)
        await until(lambda: vllm.aborted == ["1-0"])

    run(test, **settings)


def test_a_drain_refuses_what_waits_and_lets_the_rest_finish() -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        running, waiting = engine.submit([request()]), engine.submit([request()])
        vllm.put("1-0", 7)
        assert await anext(running)
        drained = asyncio.create_task(engine.drain(5))
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await anext(waiting)
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            engine.check_room(1)
        vllm.put("1-0", 8, finish="length")
        assert [event async for part in running for event in part] == [TokenEvent(1, 0, 8, None, "length")]
        await drained

    run(test)


def test_what_vllm_itself_refuses_is_named() -> None:
    class Refusal(ValueError):
        parameter = "top_k"

    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        handle = engine.submit([request()])
        vllm.fail("1-0", Refusal("too many"))
        with pytest.raises(UnsupportedFieldError, match="top_k: vLLM refuses it: too many"):
            await anext(handle)

    run(test)


def test_a_failure_of_one_request_is_its_own() -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        failing, other = engine.submit([request(), request()]), engine.submit([request()])
        await until(lambda: len(vllm.outputs) == 3)
        vllm.fail("1-0", ValueError("no such adapter"))
        with pytest.raises(EngineError, match="vLLM failed: no such adapter"):
            await anext(failing)
        await until(lambda: vllm.aborted == ["1-1"])
        vllm.put("2-0", 7, finish="abort")
        with pytest.raises(EngineError, match="vLLM ended the sequence: abort"):
            [part async for part in other]
        engine.check_room(3)

    run(test)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_given": 1}, "continue_tokens"),
        ({"params": SamplingParams(temperature=0.005, seed=1)}, "temperature"),
        ({"params": SamplingParams(temperature=2.01, seed=1)}, "temperature"),
        ({"prompt_ids": (1,) * READY.context_length, "max_tokens": 0, "num_prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_what_vllm_does_not_have_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    async def test(engine: VllmEngine, vllm: FakeVllm) -> None:
        with pytest.raises(UnsupportedFieldError, match=f"^{field}: ") as failure:
            engine.submit([request(**changes)])
        assert failure.value.field == field
        assert not vllm.outputs

    run(test)
