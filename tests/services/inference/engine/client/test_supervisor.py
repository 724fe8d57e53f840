"""Workers that end, hang or do not load, and what takes their place."""

import asyncio
import errno
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from services.inference.engine import (
    EngineClient,
    EngineRestartedError,
    EngineUnavailableError,
    RequestTimeoutError,
    TokenEvent,
)
from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import Ready
from services.inference.engine.types import Fault
from tests.services.inference.engine.client.peer import READY, REQUEST, Peer, client_of, read, run, until


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.engine.crash_counter._RESTART_SECONDS", 0.001)
    monkeypatch.setattr("services.inference.engine.client.supervisor._RETRY_SECONDS", 0.001)


def test_a_process_that_hangs_is_replaced() -> None:
    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers, step_timeout=0.2) as engine:
            for token in range(5):  # one that works takes all the time that it needs
                handle = engine.submit([REQUEST])
                await asyncio.sleep(0.05)
                peers[0].say(TokenEvent(token + 1, 0, token, None, "stop"))
                assert len(await read(handle)) == 1
            await asyncio.sleep(0.3)  # as does one that has nothing to do
            assert engine.fault is None
            with pytest.raises(EngineRestartedError, match=r"sent nothing for 0\.2 seconds"):
                await read(engine.submit([REQUEST]))
            assert peers[0].ended
            await until(lambda: engine.fault is None)
            handle = engine.submit([REQUEST])
            peers[1].say(TokenEvent(7, 0, 1, None, "stop"))
            assert len(await read(handle)) == 1

    run(test)


def test_a_process_that_hangs_is_replaced_though_all_requests_have_run_into_their_own_limit() -> None:
    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers, step_timeout=0.2, request_timeout=0.01) as engine:
            with pytest.raises(RequestTimeoutError):
                await read(engine.submit([REQUEST]))
            await until(lambda: peers[0].ended)
            await until(lambda: engine.fault is None)

    run(test)


def test_one_does_not_seem_to_hang_where_all_was_held_up() -> None:
    """As where a container is paused: by the clock there was time enough, and the process had none of it."""

    async def test() -> None:
        peer = Peer()
        async with client_of(peer, step_timeout=0.4) as engine:
            handle = engine.submit([REQUEST])
            await peer.heard(1)
            time.sleep(0.5)  # the event loop stands still
            for _ in range(5):
                await asyncio.sleep(0)  # a look
            peer.say(TokenEvent(1, 0, 7, None, "stop"))
            assert len(await read(handle)) == 1
            assert engine.fault is None

    run(test)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (Peer, "ended by a test"),
        (lambda: Peer(LoadError("no memory", reported=True)), "cannot be loaded again: no memory"),
        (lambda: Peer(READY._replace(identity="another")), "now holds another model"),
    ],
)
def test_what_a_restart_does_not_mend_is_final(second: Callable[[], Peer], reason: str) -> None:
    async def test() -> None:
        peers = [Peer(), second(), Peer(), Peer()]
        async with client_of(*peers) as engine:
            for peer in peers:
                peer.theirs.close()
            await until(lambda: engine.fault is not None and engine.fault.final)
            assert engine.fault is not None
            assert reason in engine.fault.reason
            with pytest.raises(EngineUnavailableError, match=f"the server cannot serve: .*{reason}") as refusal:
                engine.check_room(1)
            assert refusal.type is EngineUnavailableError, "no restart comes"

    run(test)


def test_a_load_that_fails_for_what_may_pass_is_tried_again_and_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a GPU is freed late: four loads fail within a minute, and the fifth serves."""
    monkeypatch.setattr("services.inference.engine.client.supervisor.LOAD_WAITS", (0.001, 0.001, 0.001, 0.05))
    no_memory = LoadError("no memory on the GPU", reported=True, transient=True)

    async def test() -> None:
        peers = [Peer(), *(Peer(no_memory) for _ in range(4)), Peer()]
        async with client_of(*peers) as engine:
            peers[0].theirs.close()
            await until(lambda: peers[4].ended)
            assert engine.fault is not None
            assert engine.fault.reason == "the model cannot be loaded again yet: no memory on the GPU"
            assert not engine.fault.final
            await until(lambda: engine.fault is None)
            assert engine.stats().restarts == 1
            assert [peer.ended for peer in peers] == [True] * 5 + [False]

    run(test)


def test_a_load_that_fails_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.engine.client.supervisor.LOAD_WAITS", (0.001, 0.001))
    no_memory = LoadError("no memory on the GPU", reported=True, transient=True)

    async def test() -> None:
        peers = [Peer(), *(Peer(no_memory) for _ in range(3)), Peer()]
        async with client_of(*peers) as engine:
            peers[0].theirs.close()
            await until(lambda: engine.fault is not None and engine.fault.final)
            assert engine.fault is not None
            assert engine.fault.reason == "the model cannot be loaded again: no memory on the GPU"

    run(test)


def test_a_restart_that_never_ends_is_given_up_and_counts_as_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third within a minute of service, however long they took to load."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        "services.inference.engine.client.supervisor.time", SimpleNamespace(monotonic=lambda: clock.now)
    )

    class Hanging(Peer):
        def wait_ready(self) -> Ready:
            clock.now += 600
            raise LoadTimeoutError(600)

    async def test() -> None:
        peers = [Peer(), Hanging(), Hanging(), Peer()]
        async with client_of(*peers) as engine:
            peers[0].theirs.close()
            await until(lambda: engine.fault is not None and engine.fault.final)
            assert engine.fault is not None
            assert engine.fault.reason == (
                "the process that runs the model ended by a test: the model was not loaded within 600 seconds, "
                "the limit (OWNLM_LOAD_TIMEOUT), the 3rd time within a minute of service"
            )
            assert [peer.ended for peer in peers] == [True, True, True, False]

    run(test)


def test_a_restart_that_fails_unexpectedly_is_final() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:  # which has no other peer to start
            peer.theirs.close()
            await until(lambda: engine.fault is not None and engine.fault.final)
            assert engine.fault is not None
            assert "cannot be started again: IndexError: pop from empty list" in engine.fault.reason

    run(test)


@pytest.mark.case("D18")
def test_a_process_that_the_system_has_no_room_for_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried until there is room, more often than a model may die, and logged as what it is."""
    monkeypatch.setattr("services.inference.engine.client.supervisor._MAX_RETRY_SECONDS", 0.004)
    failures = [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EMFILE]

    async def test() -> None:
        first, second = Peer(), Peer()
        faults = []

        def launch() -> Peer:
            if not failures:
                return second
            faults.append(engine.fault)
            raise OSError(failures[0], os.strerror(failures.pop(0)))

        engine = EngineClient(first, READY, launch, max_queue=4)
        await engine.start()
        with capture_logs() as logs:
            first.theirs.close()
            await until(lambda: bool(engine.stats().restarts) and engine.fault is None)
        assert engine.stats().restarts == 1
        assert faults[-1] == Fault(
            "the process that runs the model cannot be started again: Cannot allocate memory", final=False
        )
        tries = [line for line in logs if line["event"] == "the model's process cannot be started"]
        assert [line["retry_seconds"] for line in tries] == [0.001, 0.002, 0.004, 0.004, 0.004]
        assert tries[0]["reason"].endswith(": Too many open files")
        handle = engine.submit([REQUEST])
        second.say(TokenEvent(1, 0, 1, None, "stop"))
        assert len(await read(handle)) == 1
        engine.close()
        await until(lambda: second.connection.fileno() < 0)
        second.theirs.close()

    run(test)


@pytest.mark.case("D18")
def test_a_restart_waits_for_a_thread_that_the_system_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run_sync = anyio.to_thread.run_sync
    failures = [RuntimeError("can't start new thread")] * 3

    async def fail_at_first(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run_sync(*arguments, **named)

    monkeypatch.setattr(anyio.to_thread, "run_sync", fail_at_first)

    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers) as engine:
            peers[0].theirs.close()
            await until(lambda: bool(engine.stats().restarts) and engine.fault is None)
        assert not failures

    run(test)
