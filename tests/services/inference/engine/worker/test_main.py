"""The model's side of the socket, on a runner of the tests."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from services.inference.engine.ipc import EngineConfig, ExitReason, LoadFailure, StepOutput, Submit, encode, receive
from services.inference.engine.runner.protocol import RunnerLostError
from services.inference.engine.types import FailEvent, TokenEvent
from services.inference.engine.worker import inbox
from services.inference.engine.worker.cache_size import CacheError
from services.inference.engine.worker.inbox import Inbox, PeerClosedError
from services.inference.engine.worker.main import serve
from shared.lm import ModelFolderError
from shared.system.errors import describe
from tests.services.inference.engine.core_driver import request
from tests.services.inference.engine.fake_runner import FakeRunner


@contextmanager
def served(runner: FakeRunner) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    model: Any = SimpleNamespace(runner=runner, ready="ready", prefill_tokens=32, min_prefill_tokens=16)
    thread = threading.Thread(target=serve, args=(theirs, lambda _config: model))
    with ours, theirs, capture_logs():
        thread.start()
        ours.sendall(encode(EngineConfig(model_dir=None)))  # type: ignore[arg-type]
        assert receive(ours) == "ready"
        try:
            yield ours
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join()


def last_event(connection: socket.socket) -> TokenEvent | FailEvent | str:
    """Read until a request of one row has ended, or the process is about to."""
    while True:
        message = receive(connection)
        if isinstance(message, ExitReason):
            return message.reason
        assert isinstance(message, StepOutput)
        for _, event in message.events:
            if isinstance(event, FailEvent) or (isinstance(event, TokenEvent) and event.finish_reason):
                return event


def test_requests_that_fail_alone_end_nothing_and_a_model_that_always_fails_ends_with_its_reason() -> None:
    runner = FakeRunner(poison=77)
    with served(runner) as connection:
        for job in range(5):
            connection.sendall(encode(Submit(job, [request([77] * 20)])))
            assert isinstance(last_event(connection), FailEvent)
        connection.sendall(encode(Submit(5, [request(9)])))
        assert isinstance(last_event(connection), TokenEvent)
        runner.faults = [OSError("gone")] * 50
        for job in range(6, 9):
            connection.sendall(encode(Submit(job, [request(9)])))
            assert last_event(connection) == FailEvent(0, "generation failed: OSError: gone")
        reason = last_event(connection)
        assert reason == "the model runs no step any more, generation failed: OSError: gone"


def test_a_runner_that_is_lost_ends_with_its_reason() -> None:
    with served(FakeRunner(faults=[None, RunnerLostError("the GPU failed: illegal memory access")])) as connection:
        connection.sendall(encode(Submit(0, [request(9)])))
        assert last_event(connection) == "the GPU failed: illegal memory access"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ModelFolderError("/models: there is no config.json"), False),
        (RuntimeError("CUDA error: device busy"), True),
        (CacheError("too little memory"), True),
    ],
)
def test_what_may_pass_is_told_from_a_wrong_folder(error: Exception, transient: bool) -> None:
    def fail(_: EngineConfig) -> NoReturn:
        raise error

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode(EngineConfig(model_dir=Path("model"))))
        with pytest.raises(type(error)):
            serve(theirs, fail)
        assert receive(ours) == LoadFailure(describe(error), transient)
        ours.shutdown(socket.SHUT_RDWR)


@pytest.mark.case("D30")
def test_where_no_thread_can_be_started_the_other_side_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "_start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
    test_what_may_pass_is_told_from_a_wrong_folder(RuntimeError("can't start new thread"), may_pass=True)


def test_an_error_of_the_core_is_told_though_it_is_one_that_sockets_raise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's errors are of these types as well; only the socket's own say that the other side is gone."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # `serve` raises it, which ends its process
    runner = FakeRunner()
    monkeypatch.setattr(runner, "close_slot", Mock(side_effect=BrokenPipeError(32, "the driver is gone")))
    with served(runner) as connection:
        connection.sendall(encode(Submit(0, [request(9)])))
        assert last_event(connection) == "[Errno 32] the driver is gone"


class FullInbox:
    """An inbox that holds as much as it may, and a thread that is about to send more."""

    SIZE, COMMANDS = 10_000, 500

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.ours, self.theirs = socket.socketpair()
        self.inbox = Inbox(self.theirs, self.ended.set)
        self._sender = threading.Thread(target=self._send)
        self._sender.start()
        with self.inbox._changed:
            assert self.inbox._changed.wait_for(lambda: self.inbox._held >= self.SIZE, 240)
        self._sender.join(0.2)
        assert self._sender.is_alive()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the end
            for job in range(self.COMMANDS):
                self.ours.sendall(encode(Submit(job, [request(1000)])))

    def close(self) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)
        self._sender.join()
        assert self.ended.wait(240)
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> FullInbox:
    monkeypatch.setattr(inbox, "_MAX_HELD_BYTES", FullInbox.SIZE)
    return FullInbox()


def test_what_the_inbox_cannot_hold_waits_in_the_socket(full: FullInbox) -> None:
    jobs: list[int] = []
    while len(jobs) < full.COMMANDS:
        commands = list(full.inbox.take(wait=True))
        assert sum(len(encode(command)) for command in commands) < full.SIZE + 4000
        jobs += [command.request_id for command in commands]
    assert jobs == list(range(full.COMMANDS))
    full.close()


def test_a_full_inbox_sees_the_end(full: FullInbox) -> None:
    full.close()
    with pytest.raises(PeerClosedError):
        full.inbox.take(wait=True)
