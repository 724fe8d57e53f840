"""`VllmEngine` on a fake vLLM. test_contract.py tests it on a real one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from services.inference.engine import (
    EngineError,
    EngineRestartedError,
    EngineUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    SequenceRequest,
    TokenEvent,
    UnsupportedFieldError,
)
from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.types import Fault
from services.inference.engine.vllm import engine as module
from services.inference.engine.vllm.engine import VllmEngine
from services.inference.engine.vllm.stats import VllmStats
from shared.lm import SamplingParams
from tests.services.inference.engine.client.peer import until


class FakeVllm:
    """A `RunningVllm` that yields the outputs that a test puts into its queues."""

    context_length = 64
    valid_ids = None
    pid = None

    def __init__(self) -> None:
        self.is_dead = False
        self.is_shut_down = False
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
        self.outputs.setdefault(name, asyncio.Queue()).put_nowait(output)

    def fail(self, name: str, error: Exception) -> None:
        self.outputs.setdefault(name, asyncio.Queue()).put_nowait(error)

    def shut_down(self) -> None:
        self.is_shut_down = True


def request(**changes: Any) -> SequenceRequest:
    values = {"prompt_ids": (1, 2, 3), "params": SamplingParams(seed=1), "max_tokens": 4, "stop_ids": frozenset()}
    return SequenceRequest(**{**values, "arrived_at": time.perf_counter(), **changes})


def run(
    test: Callable[[VllmEngine, list[FakeVllm]], Awaitable[None]],
    *,
    failures: Iterable[Exception] = (),
    **settings: Any,
) -> None:
    """Run a test with an engine; `started` has each vLLM that it has started, after restarts that fail."""
    pending = list(failures)

    async def main() -> None:
        started = [FakeVllm()]

        def launch() -> FakeVllm:
            if pending:
                raise pending.pop(0)
            started.append(FakeVllm())
            return started[-1]

        engine = VllmEngine(started[0], launch, VllmStats(), **{"max_sequences": 3, **settings})  # type: ignore[arg-type]
        waits: list[float] = []
        await engine.start(waits.append)
        await test(engine, started)
        engine.close()
        await asyncio.sleep(0)
        assert started[-1].is_shut_down
        assert all(wait >= 0 for wait in waits)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_events_come_as_from_our_own_engine() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        handle = engine.submit([request(), request()])
        started[0].put("1-0", 7)
        started[0].put("1-0", 8, 9, finish="stop")
        started[0].put("1-1", 5, finish="length")
        events = [event async for part in handle for event in part]
        first = [event for event in events if event.sequence_index == 0]
        assert first[0].num_cached_tokens == 16  # type: ignore[union-attr]
        assert first[1:] == [TokenEvent(1, 0, 7), TokenEvent(1, 0, 8), TokenEvent(1, 0, 9, None, "stop")]
        assert events[-1] == TokenEvent(1, 1, 5, None, "length")
        assert handle.started_at is not None
        assert engine.stats().num_waiting == engine.stats().num_running == 0

    run(test)


def test_what_is_dropped_or_canceled_is_aborted() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        handle = engine.submit([request(), request(), request()])
        await asyncio.sleep(0)
        handle.drop(1)
        await until(lambda: started[0].aborted == ["1-1"])
        handle.cancel()
        await until(lambda: sorted(started[0].aborted) == ["1-0", "1-1", "1-2"])
        engine.check_room(3)

    run(test)


def test_there_is_room_for_as_many_as_the_settings_say() -> None:
    async def test(engine: VllmEngine, _started: list[FakeVllm]) -> None:
        engine.submit([request(), request()])
        with pytest.raises(QueueFullError, match="2 sequences are running or waiting and the limit is 3"):
            engine.submit([request(), request()])
        assert engine.stats().num_waiting == 2

    run(test)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"queue_timeout": 0.05}, QueueTimeoutError), ({"request_timeout": 0.05}, RequestTimeoutError)],
)
def test_what_takes_too_long_is_ended_and_aborted(settings: dict[str, Any], error: type[EngineError]) -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        handle = engine.submit([request()])
        with pytest.raises(error):
            await anext(handle)
        await until(lambda: started[0].aborted == ["1-0"])

    run(test, **settings)


def test_a_drain_refuses_what_waits_and_lets_the_rest_finish() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        running, waiting = engine.submit([request()]), engine.submit([request()])
        started[0].put("1-0", 7)
        assert await anext(running)
        drained = asyncio.create_task(engine.drain(5))
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await anext(waiting)
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            engine.check_room(1)
        started[0].put("1-0", 8, finish="length")
        assert [event async for part in running for event in part] == [TokenEvent(1, 0, 8, None, "length")]
        await drained

    run(test)


def test_what_vllm_itself_refuses_is_named() -> None:
    class Refusal(ValueError):
        parameter = "top_k"

    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        handle = engine.submit([request()])
        started[0].fail("1-0", Refusal("too many"))
        with pytest.raises(UnsupportedFieldError, match="top_k: vLLM refuses it: too many"):
            await anext(handle)

    run(test)


def test_a_failure_of_one_request_is_its_own() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        failing, other = engine.submit([request(), request()]), engine.submit([request()])
        await until(lambda: len(started[0].outputs) == 3)
        started[0].fail("1-0", ValueError("no such adapter"))
        with pytest.raises(EngineError, match="vLLM failed: no such adapter"):
            await anext(failing)
        await until(lambda: started[0].aborted == ["1-1"])
        started[0].put("2-0", 7, finish="abort")
        with pytest.raises(EngineError, match="vLLM ended the sequence: abort"):
            [part async for part in other]
        engine.check_room(3)

    run(test)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr("services.inference.engine.crash_counter._RESTART_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_a_vllm_that_dies_is_replaced_until_it_dies_too_often() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        for number in range(3):
            handle = engine.submit([request()])
            await asyncio.sleep(0)
            started[-1].is_dead = True
            started[-1].fail(f"{number + 1}-0", RuntimeError("dead"))
            with pytest.raises(EngineUnavailableError) as failure:
                await anext(handle)
            assert isinstance(failure.value, EngineRestartedError) is (number < 2)
            await until(lambda: engine.fault is None or engine.fault.final)
        assert engine.fault is not None
        assert "3rd time within a minute" in engine.fault.reason
        assert engine.stats().restarts == len(started) == 3
        with pytest.raises(EngineUnavailableError, match="cannot serve"):
            engine.check_room(1)

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_restart_that_fails_at_any_point_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else requests would get `engine_restarted` without end."""

    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        async def no_thread(*_: object, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(module.anyio.to_thread, "run_sync", no_thread)
        started[0].is_dead = True
        await until(lambda: engine.fault is not None and engine.fault.final)
        with pytest.raises(EngineUnavailableError, match=r"cannot be started again: can't start new thread"):
            engine.check_room(1)

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_start_that_fails_for_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ours: the memory of a GPU, for one, is free some seconds after the process that had it has ended."""
    monkeypatch.setattr(module, "LOAD_WAITS", (0.001, 0.05))
    reasons: set[str] = set()

    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        def serves() -> bool:
            reasons.add(engine.fault.reason if engine.fault else "")
            return len(started) == 2 and engine.fault is None

        started[0].is_dead = True
        await until(serves)
        assert engine.stats().restarts == 1

    run(test, failures=[LoadTimeoutError(1), LoadError("no memory", reported=True, transient=True)])
    assert "vLLM cannot be started again yet: no memory" in reasons


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("transient", [True, False])
def test_a_start_that_fails_always_ends_the_service(transient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_WAITS", (0.001, 0.001))

    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        started[0].is_dead = True
        await until(lambda: engine.fault is not None and engine.fault.final)
        assert engine.fault == Fault(f"vLLM cannot be started again: {2 if transient else 0}", final=True)

    run(test, failures=[LoadError(str(number), reported=True, transient=transient) for number in range(5)])


@pytest.mark.usefixtures("quick")
def test_a_vllm_that_hangs_is_replaced_and_one_that_is_idle_is_not() -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        await asyncio.sleep(0.3)
        assert len(started) == 1
        handle = engine.submit([request()])
        with pytest.raises(EngineRestartedError, match=r"made no step for 0\.1 seconds"):
            await anext(handle)
        await until(lambda: len(started) == 2 and engine.fault is None)
        assert started[0].is_shut_down
        answered = engine.submit([request()])
        started[1].put("2-0", 3, finish="length")
        assert [part async for part in answered]

    run(test, step_timeout=0.1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_given": 1}, "continue_tokens"),
        ({"params": SamplingParams(temperature=0.005, seed=1)}, "temperature"),
        ({"params": SamplingParams(temperature=2.01, seed=1)}, "temperature"),
        ({"prompt_ids": (1,) * 64, "max_tokens": 0, "num_prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_what_vllm_does_not_have_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    async def test(engine: VllmEngine, started: list[FakeVllm]) -> None:
        with pytest.raises(UnsupportedFieldError, match=f"^{field}: ") as failure:
            engine.submit([request(**changes)])
        assert failure.value.field == field
        assert not started[0].outputs

    run(test)
