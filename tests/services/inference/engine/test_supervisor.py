"""Engine processes that end, hang or do not load, and what takes their place: with our engine and with vLLM."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, NamedTuple

import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from services.inference.engine import Engine, EngineRestartedError, EngineUnavailableError, RequestTimeoutError
from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import Ready
from services.inference.engine.supervisor import describe_exit
from services.inference.engine.types import Fault
from tests.services.inference.engine.client.peer import Peer, client_of
from tests.services.inference.engine.fake_process import READY, REQUEST, read, run, until
from tests.services.inference.engine.vllm.fake_vllm import FakeVllm, vllm_of

MODULE = "services.inference.engine.supervisor"
NO_MEMORY = LoadError("no memory on the GPU", reported=True, transient=True)


class Side(NamedTuple):
    """One of the two engines."""

    process: Callable[..., Any]
    engine_of: Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(params=[Side(Peer, client_of), Side(FakeVllm, vllm_of)], ids=["ownlm", "vllm"])
def side(request: pytest.FixtureRequest) -> Side:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("services.inference.engine.crash_counter._RESTART_SECONDS", 0.001)
    monkeypatch.setattr("services.inference.engine.vllm.engine._WATCH_SECONDS", 0.001)
    monkeypatch.setattr(f"{MODULE}._RETRY_SECONDS", 0.001)
    monkeypatch.setattr(f"{MODULE}._LOAD_WAITS", (0.001, 0.001, 0.001, 0.05))
    with capture_logs():  # structlog takes seconds to print a traceback
        yield


async def fault_of(engine: Engine, *, final: bool) -> str:
    """The reason, once there is such a fault."""
    await until(lambda: engine.fault is not None and engine.fault.final is final)
    assert engine.fault is not None
    return engine.fault.reason


async def restart_of(engine: Engine) -> None:
    await until(lambda: engine.stats().restarts and engine.fault is None)


def test_one_that_ends_is_replaced_until_it_ends_too_often(side: Side) -> None:
    async def test() -> None:
        processes = [side.process() for _ in range(4)]
        async with side.engine_of(*processes) as engine:
            for number, process in enumerate(processes[:3]):
                handle = engine.submit([REQUEST])
                await asyncio.sleep(0)
                process.die()
                with pytest.raises(EngineUnavailableError, match="the engine process ended by a test") as failure:
                    await read(handle)
                assert isinstance(failure.value, EngineRestartedError) is (number < 2)
                await until(lambda: engine.fault is None or engine.fault.final)
            assert await fault_of(engine, final=True) == (
                "the engine process ended by a test, the 3rd time within a minute of service"
            )
            assert engine.stats().restarts == 3
            assert [process.ended for process in processes] == [True, True, True, False]
            with pytest.raises(EngineUnavailableError, match="cannot serve"):
                engine.check_room(1)

    run(test)


def test_one_that_hangs_is_replaced(side: Side) -> None:
    async def test() -> None:
        processes = [side.process(), side.process()]
        async with side.engine_of(*processes, step_timeout=0.2) as engine:
            for token in range(5):  # one that works takes all the time that it needs
                handle = engine.submit([REQUEST])
                await asyncio.sleep(0.05)
                processes[0].answer(token + 1, token)
                assert await read(handle)
            await asyncio.sleep(0.3)  # as does one that has nothing to do
            assert engine.fault is None
            with pytest.raises(EngineRestartedError, match=r"no step completed for 0\.2 s \(OWNLM_STEP_TIMEOUT\)"):
                await read(engine.submit([REQUEST]))
            assert processes[0].ended
            await until(lambda: engine.fault is None)
            handle = engine.submit([REQUEST])
            processes[1].answer(7, 1)
            assert await read(handle)

    run(test)


def test_one_that_hangs_is_replaced_though_requests_run_into_their_own_limit(side: Side) -> None:
    async def test() -> None:
        processes = [side.process(), side.process()]
        async with side.engine_of(*processes, step_timeout=0.2, request_timeout=0.01) as engine:
            while not processes[0].ended:
                with pytest.raises((RequestTimeoutError, EngineRestartedError)):
                    await read(engine.submit([REQUEST]))
                await asyncio.sleep(0.01)
            await restart_of(engine)

    run(test)


def test_one_does_not_seem_to_hang_where_all_was_held_up(side: Side) -> None:
    """As where a container is paused: by the clock there was time enough, and the process had none of it."""

    async def test() -> None:
        process = side.process()
        async with side.engine_of(process, step_timeout=0.4) as engine:
            handle = engine.submit([REQUEST])
            await asyncio.sleep(0.01)
            time.sleep(0.5)  # the event loop stands still
            for _ in range(5):
                await asyncio.sleep(0)  # a look
            process.answer(1, 7)
            assert await read(handle)
            assert engine.fault is None

    run(test)


def test_one_that_ends_while_the_service_does_is_not_said_to_be_restarted(side: Side) -> None:
    async def test() -> None:
        process = side.process()
        async with side.engine_of(process, side.process()) as engine:
            handle = engine.submit([REQUEST])
            process.begin(1)
            await until(lambda: handle.started_at)
            drained = asyncio.create_task(engine.drain(10))
            await asyncio.sleep(0)
            process.die()
            with pytest.raises(EngineUnavailableError, match="ended by a test while the server is") as end:
                await read(handle)
            assert end.type is EngineUnavailableError
            await drained
            assert engine.fault is not None
            assert not engine.fault.final, "the service ends, and has not failed"

    run(test)


def test_one_that_loads_while_the_service_ends_is_ended_too(side: Side) -> None:
    begun, over = threading.Event(), threading.Event()

    class Loading(side.process):  # type: ignore[name-defined,misc]
        def wait_ready(self) -> Ready:
            begun.set()
            assert over.wait(20)
            raise LoadError("it was ended", reported=False)

        def end(self) -> str:
            over.set()
            return str(super().end())

    async def test() -> None:
        processes = [side.process(), Loading(), side.process()]
        async with side.engine_of(*processes) as engine:
            processes[0].die()
            await until(begun.is_set)
            engine.close()
            assert processes[1].closed
            await asyncio.sleep(0.05)
            assert not processes[2].ended, "it was never started"

    before = set(threading.enumerate())
    run(test)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (READY, "ended by a test, the 3rd time"),
        (LoadError("no memory", reported=True), "the model cannot be loaded again: no memory"),
        (READY._replace(identity="another"), "now holds another model"),
        (ValueError("config.json is no JSON"), "the engine process cannot be started again: config.json is no JSON"),
    ],
)
def test_what_a_restart_does_not_mend_is_final(second: Ready | Exception, reason: str, side: Side) -> None:
    async def test() -> None:
        processes = [side.process(), side.process(second), side.process(), side.process()]
        async with side.engine_of(*processes) as engine:
            for process in processes:
                process.die()
            assert reason in await fault_of(engine, final=True)
            with pytest.raises(EngineUnavailableError, match=f"the server cannot serve: .*{reason}") as refusal:
                engine.check_room(1)
            assert refusal.type is EngineUnavailableError, "no restart comes"

    run(test)


def test_a_restart_that_fails_unexpectedly_is_final(side: Side) -> None:
    async def test() -> None:
        process = side.process()
        async with side.engine_of(process) as engine:  # which has no other one to start
            process.die()
            reason = await fault_of(engine, final=True)
            assert reason == "the engine process cannot be started again: IndexError: pop from empty list"

    run(test)


def test_one_that_nothing_ends_is_not_replaced(side: Side) -> None:
    class Stuck(side.process):  # type: ignore[name-defined,misc]
        def end(self) -> str:
            super().end()
            raise RuntimeError("process 7 did not end after SIGKILL")

        def close(self) -> None:
            super().end()

    async def test() -> None:
        process, second = Stuck(), side.process()
        async with side.engine_of(process, second) as engine:
            process.die()
            assert "process 7 did not end after SIGKILL" in await fault_of(engine, final=True)
            process.end = super(Stuck, process).end

    run(test)


def test_a_load_that_fails_for_what_may_pass_is_tried_again_and_is_no_end(side: Side) -> None:
    """Memory of a GPU is freed late: four loads fail within a minute, and the fifth serves."""

    async def test() -> None:
        processes = [side.process(), *(side.process(NO_MEMORY) for _ in range(4)), side.process()]
        async with side.engine_of(*processes) as engine:
            processes[0].die()
            await until(lambda: processes[4].ended)
            assert engine.fault == Fault("the model cannot be loaded again yet: no memory on the GPU", final=False)
            await restart_of(engine)
            assert engine.stats().restarts == 1
            assert [process.ended for process in processes] == [True] * 5 + [False]

    run(test)


def test_a_load_that_fails_again_and_again_is_given_up(side: Side) -> None:
    async def test() -> None:
        processes = [side.process(), *(side.process(NO_MEMORY) for _ in range(5)), side.process()]
        async with side.engine_of(*processes) as engine:
            processes[0].die()
            assert await fault_of(engine, final=True) == "the model cannot be loaded again: no memory on the GPU"

    run(test)


def test_a_restart_that_never_ends_is_given_up_and_counts_as_an_end(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third within a minute of service, however long they took to load."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(monotonic=lambda: clock.now))

    class Hanging(side.process):  # type: ignore[name-defined,misc]
        def wait_ready(self) -> Ready:
            clock.now += 600
            raise LoadTimeoutError(600)

    async def test() -> None:
        processes = [side.process(), Hanging(), Hanging(), side.process()]
        async with side.engine_of(*processes) as engine:
            processes[0].die()
            assert await fault_of(engine, final=True) == (
                "the engine process ended by a test: the model was not loaded within 600 seconds "
                "(OWNLM_LOAD_TIMEOUT), the 3rd time within a minute of service"
            )
            assert [process.ended for process in processes] == [True, True, True, False]
            assert engine.stats().restarts == 1

    run(test)


@pytest.mark.case("D18")
@pytest.mark.parametrize("at", ["launch", "wait_ready"])
def test_one_that_the_system_has_no_room_for_is_no_death(at: str, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried until there is room, more often than a model may die, and logged as what it is."""
    monkeypatch.setattr(f"{MODULE}._MAX_RETRY_SECONDS", 0.004)
    codes = [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EMFILE, errno.ENOMEM]
    errors = [OSError(code, os.strerror(code)) for code in codes]
    faults = []

    async def test() -> None:
        first, last = side.process(), side.process()
        between = errors if at == "launch" else [side.process(error) for error in errors]
        async with side.engine_of(first, *between, last) as engine:
            with capture_logs() as logs:
                first.die()
                while not (engine.stats().restarts and engine.fault is None):
                    faults.append(engine.fault)
                    await asyncio.sleep(0.001)
            assert engine.stats().restarts == 1
            reason = "the engine process cannot be started again yet: Cannot allocate memory"
            assert Fault(reason, final=False) in faults
            tries = [line for line in logs if line["event"] == "engine restart failed, trying again"]
            assert [line["next_try_seconds"] for line in tries] == [0.001, 0.002, 0.004, 0.004, 0.004]
            assert tries[0]["reason"].endswith(": Too many open files")
            handle = engine.submit([REQUEST])
            last.answer(1, 1)
            assert await read(handle)

    run(test)


@pytest.mark.case("D18")
def test_a_restart_waits_for_a_thread_that_the_system_has_no_room_for(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync = anyio.to_thread.run_sync
    failures = [RuntimeError("can't start new thread")] * 3

    async def fail_at_first(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run_sync(*arguments, **named)

    monkeypatch.setattr(anyio.to_thread, "run_sync", fail_at_first)

    async def test() -> None:
        processes = [side.process(), side.process()]
        async with side.engine_of(*processes) as engine:
            processes[0].die()
            await restart_of(engine)
        assert not failures

    run(test)


@pytest.mark.parametrize(
    ("returncode", "how"),
    [
        (3, "with exit code 3"),
        (-9, "by signal SIGKILL, possibly because the system ran out of memory"),
        (-11, "by signal SIGSEGV"),
        (-40, "by signal 40"),
    ],
)
def test_how_one_ended(returncode: int, how: str) -> None:
    assert describe_exit(returncode) == how
