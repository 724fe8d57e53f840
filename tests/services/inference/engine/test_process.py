"""The model's side of the socket, on a runner of the tests."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from services.inference.engine.messages import EngineConfig, LastWords, Step, Submit, encode, receive
from services.inference.engine.process import serve
from services.inference.engine.request import FailEvent, TokenEvent
from tests.services.inference.engine.core_driver import request
from tests.services.inference.engine.fake_runner import FakeRunner


@contextmanager
def served(runner: FakeRunner) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    model: Any = SimpleNamespace(runner=runner, hello="ready", prefill_tokens=32, min_prefill_tokens=16)
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
        if isinstance(message, LastWords):
            return message.reason
        assert isinstance(message, Step)
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
