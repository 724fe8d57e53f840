"""The model's side of the socket, on a runner of the tests."""

import os
import socket
import subprocess
import sys
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
from services.inference.engine.worker.cache_size import CacheError
from services.inference.engine.worker.main import _peer_process, serve
from shared.lm import ModelFolderError
from shared.system.errors import describe
from tests.services.inference.engine.core_driver import request
from tests.services.inference.engine.fake_runner import FakeRunner


@contextmanager
def served(runner: FakeRunner) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    model: Any = SimpleNamespace(
        runner=runner, ready="ready", prefill_tokens=32, min_prefill_tokens=16, tokens_beside=lambda _: None
    )
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
    """Read until a request of one sequence has ended, or the process is about to."""
    while True:
        message = receive(connection)
        if isinstance(message, ExitReason):
            return message.reason
        assert isinstance(message, StepOutput)
        for event in message.events:
            if isinstance(event, FailEvent) or (isinstance(event, TokenEvent) and event.finish_reason):
                return event


def test_requests_that_fail_alone_end_nothing_and_a_model_that_always_fails_ends_with_its_reason() -> None:
    runner = FakeRunner(poison=77)
    with served(runner) as connection:
        for request_id in range(5):
            connection.sendall(encode(Submit(request_id, [request([77] * 20)])))
            assert isinstance(last_event(connection), FailEvent)
        connection.sendall(encode(Submit(5, [request(9)])))
        assert isinstance(last_event(connection), TokenEvent)
        runner.faults = [OSError("gone")] * 50
        for request_id in range(6, 9):
            connection.sendall(encode(Submit(request_id, [request(9)])))
            assert last_event(connection) == FailEvent(request_id, 0, "generation failed: OSError: gone")
        reason = last_event(connection)
        assert reason == "every model step is failing: generation failed: OSError: gone"


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
def test_transient_errors_are_distinguished_from_a_wrong_folder(error: Exception, transient: bool) -> None:
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
def test_where_no_thread_can_be_started_the_other_side_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    test_transient_errors_are_distinguished_from_a_wrong_folder(RuntimeError("can't start new thread"), transient=True)


def test_an_error_of_the_core_is_reported_though_it_is_one_that_sockets_raise_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver's errors are of these types as well; only the socket's own say that the other side is gone."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # `serve` raises it, which ends its process
    runner = FakeRunner()
    monkeypatch.setattr(runner, "close_slot", Mock(side_effect=BrokenPipeError(32, "the driver is gone")))
    with served(runner) as connection:
        connection.sendall(encode(Submit(0, [request(9)])))
        assert last_event(connection) == "[Errno 32] the driver is gone"


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_the_process_that_made_the_sockets_is_known() -> None:
    """To a child of a child of it, too."""
    ours, theirs = socket.socketpair()
    code = "from socket import *; print(socket(fileno=0).getsockopt(SOL_SOCKET, SO_PEERCRED, 4))"
    with ours, theirs:
        assert _peer_process(theirs) == os.getpid()
        command = ["sh", "-c", f"{sys.executable} -c '{code}'; true"]
        found = subprocess.run(command, stdin=theirs, capture_output=True, check=True)
    assert found.stdout.decode().strip() == str(os.getpid().to_bytes(4, sys.byteorder))
