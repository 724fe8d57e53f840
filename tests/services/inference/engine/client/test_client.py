"""The client's side of the socket, against a peer that a test plays itself."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from services.inference.engine import (
    EngineClient,
    EngineError,
    EngineRestartedError,
    EngineStats,
    EngineUnavailableError,
    PromptEvent,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
    SequenceRequest,
    TokenEvent,
)
from services.inference.engine.ipc import Cancel, ExitReason, Submit, encode
from services.inference.engine.types import FailEvent, StartEvent
from shared.lm import SamplingParams
from tests.services.inference.engine.client.peer import Peer, client_of
from tests.services.inference.engine.fake_process import READY, REQUEST, read, run, until


def test_one_that_was_never_started_is_closed_too() -> None:
    """As where SIGTERM comes while the model is loaded."""
    peer = Peer()
    EngineClient(peer, READY, Peer, max_queue=0).close()
    assert peer.closed
    peer.theirs.close()


def test_sequences_go_and_events_come() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            handle = engine.submit([REQUEST, REQUEST])
            assert await peer.heard(1) == [Submit(1, [REQUEST, REQUEST])]
            events = [
                PromptEvent(1, 0, 0),
                PromptEvent(1, 1, 2),
                TokenEvent(1, 0, 7, None, "stop"),
                TokenEvent(1, 1, 8),
            ]
            peer.say(StartEvent(1, 0, 0.0), *events)
            assert await anext(handle) == events
            assert handle.started_at is not None
            assert handle.started_at >= handle.submitted_at
            peer.say(TokenEvent(1, 1, 9, None, "length"))
            assert await read(handle) == [TokenEvent(1, 1, 9, None, "length")]
            assert engine.stats().num_waiting == 0

    run(test)


def test_a_handler_that_comes_late_gets_all_in_one_list() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            handle = engine.submit([REQUEST])
            for token in range(3):
                peer.say(TokenEvent(1, 0, token))
            peer.say(TokenEvent(1, 0, 3, None, "length"))
            await until(lambda: handle.num_live == 0)
            assert [event.token for event in await anext(handle)] == [0, 1, 2, 3]
            assert await read(handle) == []

    run(test)


def test_an_abandoned_request_is_cancelled_once_and_frees_its_slots_at_once() -> None:  # B34
    async def test() -> None:
        peer = Peer()
        async with client_of(peer, max_queue=1) as engine:
            handle = engine.submit([REQUEST, REQUEST, REQUEST])
            with pytest.raises(QueueFullError, match="3 sequences"):
                engine.submit([REQUEST])
            handle.drop(1)
            handle.drop(1)
            handle.cancel()
            handle.cancel()
            assert (await peer.heard(3))[1:] == [Cancel(1, 1), Cancel(1, None)]
            peer.say(TokenEvent(1, 0, 7), TokenEvent(1, 2, 7))  # of the step that ran meanwhile
            assert await read(handle) == []
            engine.submit([REQUEST, REQUEST, REQUEST]).cancel()
            assert [type(command) for command in await peer.heard(2)] == [Submit, Cancel]

    run(test)


def test_a_sequence_that_ended_is_not_cancelled() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            handle = engine.submit([REQUEST])
            peer.say(TokenEvent(1, 0, 7, None, "stop"))
            await read(handle)
            handle.drop(0)
            handle.cancel()
            engine.submit([REQUEST])
            assert [type(command) for command in await peer.heard(2)] == [Submit, Submit]

    run(test)


def test_a_sequence_that_fails_ends_its_request_and_no_other() -> None:  # B74
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            sick, healthy = engine.submit([REQUEST, REQUEST]), engine.submit([REQUEST])
            peer.say(TokenEvent(1, 0, 7), FailEvent(1, 1, "MemoryError"), TokenEvent(2, 0, 8, None, "stop"))
            assert await anext(sick) == [TokenEvent(1, 0, 7)]
            with pytest.raises(EngineError, match="MemoryError"):
                await read(sick)
            assert await read(healthy) == [TokenEvent(2, 0, 8, None, "stop")]
            assert (await peer.heard(3))[2] == Cancel(1, None)

    run(test)


def test_a_failure_of_a_cancelled_sequence_ends_nothing() -> None:
    """An answer ended by a stop string while its sequence went on to fail; the request's other answers go on."""

    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            handle = engine.submit([REQUEST, REQUEST])
            handle.drop(0)
            peer.say(FailEvent(1, 0, "logits"), TokenEvent(1, 1, 7, None, "stop"))
            assert await read(handle) == [TokenEvent(1, 1, 7, None, "stop")]

    run(test)


def test_what_can_never_run_is_refused_at_once() -> None:  # B70
    async def test() -> None:
        async with client_of(Peer()) as engine:
            with pytest.raises(RequestTooLargeError, match="7 sequences exceed the limit of 6"):
                engine.submit([REQUEST] * 7)
            with pytest.raises(RequestTooLargeError, match="it holds 256"):
                engine.submit([SequenceRequest((1,) * 300, SamplingParams(), 1, frozenset())])
            assert engine.stats().num_waiting == 0

    run(test)


def test_a_process_that_reads_nothing_blocks_no_request_and_is_sent_no_more_than_so_much(
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
            with pytest.raises(QueueFullError, match="server overloaded"):
                engine.check_room(1)
            assert sent < 100
            assert await peer.heard(sent) == [Submit(number, [huge]) for number in range(1, sent + 1)]
            engine.submit([REQUEST])
            await peer.heard(1)

    run(test)


def test_timeouts_of_the_queue_and_of_the_whole() -> None:
    async def test() -> None:
        peer = Peer()
        async with client_of(peer, queue_timeout=0.05, request_timeout=0.2) as engine:
            waiting, running, quick = (engine.submit([REQUEST]) for _ in range(3))
            peer.say(StartEvent(2, 0, 0.0), TokenEvent(3, 0, 1, None, "stop"))
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
            handle = engine.submit([REQUEST])
            peers[0].say(stats=EngineStats(num_running=1, steps=7, generated_tokens=70, kv_blocks_used=3))
            await until(lambda: engine.stats().num_running == 1)
            peers[0].theirs.sendall(encode(ExitReason("enough")))
            peers[0].theirs.close()
            with pytest.raises(EngineRestartedError, match="ended by a test: enough"):
                await read(handle)
            assert engine.fault is not None
            assert not engine.fault.final
            with pytest.raises(EngineRestartedError, match="enough"):
                engine.submit([REQUEST])
            await until(lambda: engine.fault is None)
            assert engine.stats().kv_blocks_total == 1
            with pytest.raises(RequestTooLargeError, match="holds 16"):  # what has become too large is not even sent
                engine.submit([SequenceRequest((1,) * 16, SamplingParams(), 5, frozenset())])
            engine.submit([REQUEST])
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
            handle = engine.submit([REQUEST])
            await peers[0].heard(1)
            unread = engine.submit([REQUEST])
            await asyncio.sleep(0)  # the event loop has sent it
            peers[0].say(TokenEvent(1, 0, 7))
            peers[0].theirs.close()
            assert await anext(handle) == [TokenEvent(1, 0, 7)]
            for ended in (handle, unread):
                with pytest.raises(EngineRestartedError, match="ended by a test"):
                    await read(ended)
            await until(lambda: engine.fault is None)

    run(test, loop)


def test_a_process_that_hangs_is_replaced_though_all_requests_have_run_into_their_own_limit() -> None:
    """Each command is answered: also the last one, which cancels."""

    async def test() -> None:
        peers = [Peer(), Peer()]
        async with client_of(*peers, step_timeout=0.2, request_timeout=0.01) as engine:
            with pytest.raises(RequestTimeoutError):
                await read(engine.submit([REQUEST]))
            await until(lambda: peers[0].ended)
            await until(lambda: engine.fault is None)

    run(test)


def test_draining_refuses_what_waits_and_ends_what_is_left() -> None:  # B64
    async def test() -> None:
        peer = Peer()
        async with client_of(peer) as engine:
            short, long, waiting = (engine.submit([REQUEST]) for _ in range(3))
            peer.say(StartEvent(1, 0, 0.0), StartEvent(2, 0, 0.0))
            await until(lambda: long.started_at)
            drained = asyncio.create_task(engine.drain(0.3))
            with pytest.raises(EngineUnavailableError, match="is shutting down"):
                await read(waiting)
            with pytest.raises(EngineUnavailableError, match="is shutting down"):
                engine.submit([REQUEST])
            peer.say(TokenEvent(1, 0, 1, None, "stop"))
            assert len(await read(short)) == 1
            with pytest.raises(EngineUnavailableError, match="shut down before"):
                await read(long)
            await drained
        assert peer.closed

    run(test)
