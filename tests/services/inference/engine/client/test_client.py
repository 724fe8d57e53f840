"""The client's side of the socket, against a peer that a test plays itself."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest
import uvloop
from structlog.testing import capture_logs

from services.inference.engine import (
    EngineClient,
    EngineError,
    EngineRestartedError,
    EngineStats,
    EngineUnavailableError,
    PromptEvent,
    QueueFullError,
    QueueTimeoutError,
    RequestHandle,
    RequestTimeoutError,
    RequestTooLargeError,
    SequenceRequest,
    TokenEvent,
)
from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import Cancel, ExitReason, MessageReader, Ready, StepOutput, Submit, encode
from services.inference.engine.types import CoreEvent, FailEvent, Fault, StartEvent
from shared.lm import SamplingParams

READY = Ready("a model", "cpu", "float32", context_length=128, num_blocks=16, num_slots=2)
ROW = SequenceRequest((1, 2, 3), SamplingParams(), 5, frozenset())


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

    def say(self, *events: tuple[int, CoreEvent], stats: EngineStats | None = None) -> None:
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


async def read(job: RequestHandle) -> list[Any]:
    return [event async for events in job for event in events]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_one_that_was_never_started_is_closed_too() -> None:
    """As where SIGTERM comes while the model is loaded."""
    peer = Peer()
    EngineClient(peer, READY, Peer, max_queue=0).close()
    assert peer.closed
    peer.theirs.close()


def test_rows_go_and_events_come() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            job = engine.submit([ROW, ROW])
            assert await peer.heard(1) == [Submit(1, [ROW, ROW])]
            events = [PromptEvent(0, 0), PromptEvent(1, 2), TokenEvent(0, 7, None, "stop"), TokenEvent(1, 8)]
            peer.say((1, StartEvent(0, 0.0)), *((1, event) for event in events))
            assert await anext(job) == events
            assert job.started_at is not None
            assert job.started_at >= job.submitted_at
            peer.say((1, TokenEvent(1, 9, None, "length")))
            assert await read(job) == [TokenEvent(1, 9, None, "length")]
            assert engine.stats().num_waiting == 0

    run(test)


def test_a_handler_that_comes_late_gets_all_in_one_list() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            job = engine.submit([ROW])
            for token in range(3):
                peer.say((1, TokenEvent(0, token)))
            peer.say((1, TokenEvent(0, 3, None, "length")))
            await until(lambda: job.num_live == 0)
            assert [event.token for event in await anext(job)] == [0, 1, 2, 3]
            assert await read(job) == []

    run(test)


def test_what_nobody_wants_is_cancelled_once_and_makes_room_at_once() -> None:  # B34
    async def test() -> None:
        peer = Peer()
        async with client_of(peer, max_queue=1) as engine:
            job = engine.submit([ROW, ROW, ROW])
            with pytest.raises(QueueFullError, match="3 sequences"):
                engine.submit([ROW])
            job.drop(1)
            job.drop(1)
            job.cancel()
            job.cancel()
            assert (await peer.heard(3))[1:] == [Cancel(1, 1), Cancel(1, None)]
            peer.say((1, TokenEvent(0, 7)), (1, TokenEvent(2, 7)))  # of the step that ran meanwhile
            assert await read(job) == []
            engine.submit([ROW, ROW, ROW]).cancel()
            assert [type(command) for command in await peer.heard(2)] == [Submit, Cancel]

    run(test)


def test_a_row_that_ended_is_not_cancelled() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            job = engine.submit([ROW])
            peer.say((1, TokenEvent(0, 7, None, "stop")))
            await read(job)
            job.drop(0)
            job.cancel()
            engine.submit([ROW])
            assert [type(command) for command in await peer.heard(2)] == [Submit, Submit]

    run(test)


def test_a_row_that_fails_ends_its_request_and_no_other() -> None:  # B74
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            sick, healthy = engine.submit([ROW, ROW]), engine.submit([ROW])
            peer.say((1, TokenEvent(0, 7)), (1, FailEvent(1, "MemoryError")), (2, TokenEvent(0, 8, None, "stop")))
            assert await anext(sick) == [TokenEvent(0, 7)]
            with pytest.raises(EngineError, match="MemoryError"):
                await read(sick)
            assert await read(healthy) == [TokenEvent(0, 8, None, "stop")]
            assert (await peer.heard(3))[2] == Cancel(1, None)

    run(test)


def test_a_failure_of_a_row_that_nobody_wants_any_more_ends_nothing() -> None:
    """An answer ended by a stop string while its row went on to fail; the request's other answers go on."""

    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            job = engine.submit([ROW, ROW])
            job.drop(0)
            peer.say((1, FailEvent(0, "logits")), (1, TokenEvent(1, 7, None, "stop")))
            assert await read(job) == [TokenEvent(1, 7, None, "stop")]

    run(test)


def test_what_can_never_run_is_refused_at_once() -> None:  # B70
    async def test() -> None:
        async with client_of(Peer()) as engine:
            for rows in ([ROW] * 7, [SequenceRequest((1,) * 300, SamplingParams(), 1, frozenset())]):
                with pytest.raises(RequestTooLargeError):
                    engine.submit(rows)
            assert engine.stats().num_waiting == 0

    run(test)


def test_a_process_that_reads_nothing_blocks_nobody_and_is_sent_no_more_than_so_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.inference.engine.client.client._MAX_UNSENT_BYTES", 1_000_000)
    huge = SequenceRequest(tuple(range(1000, 1100)), SamplingParams(), 1, frozenset(range(200_000)))

    async def test() -> None:
        peer = Peer()
        async with client_of(peer, max_queue=1000) as engine:
            sent = 0
            with suppress(QueueFullError):
                while sent < 1000:
                    engine.submit([huge])
                    sent += 1
            with pytest.raises(QueueFullError, match="does not keep up"):
                engine.check_room(1)
            assert sent < 100
            assert await peer.heard(sent) == [Submit(number, [huge]) for number in range(1, sent + 1)]
            engine.submit([ROW])
            await peer.heard(1)

    run(test)


def test_timeouts_of_the_queue_and_of_the_whole() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer, queue_timeout=0.05, request_timeout=0.2) as engine:
            waiting, running, quick = (engine.submit([ROW]) for _ in range(3))
            peer.say((2, StartEvent(0, 0.0)), (3, TokenEvent(0, 1, None, "stop")))
            with pytest.raises(QueueTimeoutError, match=r"0\.05 seconds"):
                await read(waiting)
            with pytest.raises(RequestTimeoutError, match=r"0\.2 seconds"):
                await read(running)
            assert len(await read(quick)) == 1
            assert (await peer.heard(5))[3:] == [Cancel(1, None), Cancel(2, None)]

    run(test)


def test_counters_go_on_where_a_process_ended() -> None:
    async def test() -> None:
        peers = [Peer(), Peer(READY._replace(num_blocks=1))]
        async with client_of(*peers) as engine:
            job = engine.submit([ROW])
            peers[0].say(stats=EngineStats(num_running=1, steps=7, generated_tokens=70, kv_blocks_used=3))
            await until(lambda: engine.stats().num_running == 1)
            peers[0].theirs.sendall(encode(ExitReason("enough")))
            peers[0].theirs.close()
            with pytest.raises(EngineRestartedError, match="ended by a test: enough"):
                await read(job)
            assert engine.fault is not None
            assert not engine.fault.final
            with pytest.raises(EngineRestartedError, match="enough"):
                engine.submit([ROW])
            await until(lambda: engine.fault is None)
            assert engine.stats().kv_blocks_total == 1
            with pytest.raises(RequestTooLargeError, match="holds 16"):  # what has become too large is not even sent
                engine.submit([SequenceRequest((1,) * 16, SamplingParams(), 5, frozenset())])
            engine.submit([ROW])
            assert [type(command) for command in await peers[1].heard(1)] == [Submit]
            peers[1].say(stats=EngineStats(num_waiting=1, steps=1, generated_tokens=10))
            await until(lambda: engine.stats().steps == 8)
            assert engine.stats() == EngineStats(
                num_waiting=1, kv_blocks_total=1, steps=8, generated_tokens=80, restarts=1
            )

    run(test)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_an_end_is_seen_though_not_all_was_read(loop: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """As after SIGKILL while a request is on its way; uvloop does not tell a reader of the socket about it."""

    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers) as engine:
            job = engine.submit([ROW])
            await peers[0].heard(1)
            unread = engine.submit([ROW])
            await asyncio.sleep(0)  # the event loop has sent it
            peers[0].say((1, TokenEvent(0, 7)))
            peers[0].theirs.close()
            assert await anext(job) == [TokenEvent(0, 7)]
            for ended in (job, unread):
                with pytest.raises(EngineRestartedError, match="ended by a test"):
                    await read(ended)
            await until(lambda: engine.fault is None)

    run(test, loop)


def test_a_process_that_hangs_is_replaced() -> None:
    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers, step_timeout=0.2) as engine:
            for token in range(5):  # one that works takes all the time that it needs
                job = engine.submit([ROW])
                await asyncio.sleep(0.05)
                peers[0].say((token + 1, TokenEvent(0, token, None, "stop")))
                assert len(await read(job)) == 1
            await asyncio.sleep(0.3)  # as does one that has nothing to do
            assert engine.fault is None
            with pytest.raises(EngineRestartedError, match=r"sent nothing for 0\.2 seconds"):
                await read(engine.submit([ROW]))
            assert peers[0].ended
            await until(lambda: engine.fault is None)
            job = engine.submit([ROW])
            peers[1].say((7, TokenEvent(0, 1, None, "stop")))
            assert len(await read(job)) == 1

    run(test)


def test_a_process_that_hangs_is_replaced_though_all_requests_have_run_into_their_own_limit() -> None:
    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers, step_timeout=0.2, request_timeout=0.01) as engine:
            with pytest.raises(RequestTimeoutError):
                await read(engine.submit([ROW]))
            await until(lambda: peers[0].ended)
            await until(lambda: engine.fault is None)

    run(test)


def test_one_does_not_seem_to_hang_where_all_was_held_up() -> None:
    """As where a container is paused: by the clock there was time enough, and the process had none of it."""

    async def test() -> None:
        peer = Peer()
        async with client_of(peer, step_timeout=0.4) as engine:
            job = engine.submit([ROW])
            await peer.heard(1)
            time.sleep(0.5)  # the event loop stands still
            for _ in range(5):
                await asyncio.sleep(0)  # a look
            peer.say((1, TokenEvent(0, 7, None, "stop")))
            assert len(await read(job)) == 1
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
def test_what_a_restart_does_not_mend_is_final(
    second: Callable[[], Peer], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)

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
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)
    monkeypatch.setattr("services.inference.engine.client.supervisor._LOAD_WAITS", (0.001, 0.001, 0.001, 0.05))
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
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)
    monkeypatch.setattr("services.inference.engine.client.supervisor._LOAD_WAITS", (0.001, 0.001))
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
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)

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


def test_a_restart_that_fails_as_nobody_foresaw_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)

    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:  # which has no other peer to start
            peer.theirs.close()
            await until(lambda: engine.fault is not None and engine.fault.final)
            assert engine.fault is not None
            assert "cannot be started again: IndexError: pop from empty list" in engine.fault.reason

    run(test)


def test_one_that_ends_while_the_service_does_is_not_said_to_be_restarted() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            job = engine.submit([ROW])
            peer.say((1, StartEvent(0, 0.0)))
            await until(lambda: job.started_at)
            drained = asyncio.create_task(engine.drain(10))
            await asyncio.sleep(0)
            peer.theirs.close()
            with pytest.raises(EngineUnavailableError, match="ended by a test while the server is") as end:
                await read(job)
            assert end.type is EngineUnavailableError
            await drained

    run(test)


def test_draining_refuses_what_waits_and_ends_what_is_left() -> None:  # B64
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            short, long, waiting = (engine.submit([ROW]) for _ in range(3))
            peer.say((1, StartEvent(0, 0.0)), (2, StartEvent(0, 0.0)))
            await until(lambda: long.started_at)
            drained = asyncio.create_task(engine.drain(0.3))
            with pytest.raises(EngineUnavailableError, match="is shutting down"):
                await read(waiting)
            with pytest.raises(EngineUnavailableError, match="is shutting down"):
                engine.submit([ROW])
            peer.say((1, TokenEvent(0, 1, None, "stop")))
            assert len(await read(short)) == 1
            with pytest.raises(EngineUnavailableError, match="shut down before"):
                await read(long)
            await drained
        assert peer.closed

    run(test)


@pytest.mark.case("D18")
def test_a_process_that_the_system_has_no_room_for_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried until there is room, more often than a model may die, and logged as what it is."""
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)
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
        job = engine.submit([ROW])
        second.say((1, TokenEvent(0, 1, None, "stop")))
        assert len(await read(job)) == 1
        engine.close()
        await until(lambda: second.connection.fileno() < 0)
        second.theirs.close()

    run(test)


@pytest.mark.case("D18")
def test_a_restart_waits_for_a_thread_that_the_system_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.inference.engine.client.supervisor._RESTART_SECONDS", 0.001)
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
