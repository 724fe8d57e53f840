"""The engine process: `python -m services.inference.engine.worker.main`, started by `client.child_process`."""

import contextlib
import gc
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from services.inference.engine.ipc import (
    Cancel,
    EngineConfig,
    ExitReason,
    LoadFailure,
    LogLine,
    Ready,
    StepOutput,
    Submit,
    encode,
    receive,
)
from services.inference.engine.runner.protocol import RunnerLostError
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import FailEvent
from services.inference.engine.worker.inbox import Inbox, PeerClosedError
from shared.lm import ModelFolderError
from shared.system.allocation import freeze_objects
from shared.system.errors import describe

if TYPE_CHECKING:
    from services.inference.engine.worker.model_loader import LoadedModel

_log = structlog.get_logger("ownlm.engine")

_MAX_FAILURES_IN_A_ROW = 3
_EXIT_FAILED = 1


class EngineLoop:
    """Runs the core: commands in, one message out for each step.

    Args:
        connection: Where messages go.
        inbox: Where commands come from.
        core: What runs.
    """

    def __init__(self, connection: socket.socket, inbox: Inbox, core: EngineCore) -> None:
        self._connection = connection
        self._inbox = inbox
        self._core = core
        self._failure = ""  # the message of the last sequence that failed

    def run(self) -> str:
        """Run until the runner is lost, or fails with every sequence: only a new process may help then.

        Returns:
            Why it ended.

        Raises:
            PeerClosedError: The other side has closed.
        """
        try:
            while self._core.failures_in_a_row < _MAX_FAILURES_IN_A_ROW:
                self.turn()
        except RunnerLostError as error:
            _log.error("the runner is lost", exc_info=error)
            return str(error)
        return f"every model step is failing: {self._failure}"

    def turn(self) -> None:
        """Take the commands that have come, waiting a while for one if there is nothing to do, and run a step."""
        core = self._core
        for command in self._inbox.take(wait=not core.has_work):
            if isinstance(command, Submit):
                core.submit(command.request_id, command.sequences)
            elif isinstance(command, Cancel):
                core.cancel(command.request_id, command.sequence_index)
        began_at = time.perf_counter()
        events = core.step()
        if core.failures_in_a_row:
            self._failure = next((event.message for event in events if isinstance(event, FailEvent)), self._failure)
        _send(self._connection, StepOutput(events, core.stats(), began_at))


def serve(
    connection: socket.socket, load: "Callable[[EngineConfig], LoadedModel]", on_end: Callable[[], None] = lambda: None
) -> None:
    """Load the model that the first message names, and run it until the other side closes or it fails for good."""
    config = receive(connection)
    if config is None:
        return
    try:
        inbox = Inbox(connection, on_end)
        model = load(config)
    except Exception as error:
        _send(connection, LoadFailure(describe(error), transient=not isinstance(error, ModelFolderError)))
        raise
    try:
        core = EngineCore(
            model.runner,
            prefill_tokens=model.prefill_tokens,
            min_prefill_tokens=model.min_prefill_tokens,
            tokens_beside=model.tokens_beside,
        )
        _send(connection, model.ready)
        reason = EngineLoop(connection, inbox, core).run()
    except PeerClosedError:
        return
    except Exception as error:  # a fault of the core itself: its state may be inconsistent
        _shut_down(connection, inbox, describe(error))
        raise
    _shut_down(connection, inbox, reason)


def _send(connection: socket.socket, message: StepOutput | Ready | LoadFailure | ExitReason) -> None:
    """Send a message.

    Raises:
        PeerClosedError: The other side has closed.
    """
    data = encode(message)
    try:
        connection.sendall(data)
    except OSError as error:
        raise PeerClosedError from error


def _shut_down(connection: socket.socket, inbox: Inbox, reason: str) -> None:
    """The shutdown handshake: send the exit reason, and wait until the other side has received it and closes.

    It still sends commands meanwhile, and a socket that is closed with data unread loses what was written to it.
    """
    with contextlib.suppress(PeerClosedError, OSError):
        _send(connection, ExitReason(reason))
        connection.shutdown(socket.SHUT_WR)
    inbox.wait_for_end()


def load_model(config: EngineConfig) -> "LoadedModel":
    """See `model_loader.load_model`. Its imports take seconds: by then the inbox watches for the other side's end."""
    from services.inference.engine.worker import model_loader

    return model_loader.load_model(config)


def main(connection: socket.socket, load: "Callable[[EngineConfig], LoadedModel]" = load_model) -> NoReturn:
    """Run the engine process until the other side closes, which is an orderly end, or the model fails for good."""
    # The HTTP process handles these signals: it drains, and closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _log_through(connection)

    def load_and_freeze(config: EngineConfig) -> "LoadedModel":
        model = load(config)
        if sys.platform == "linux":
            model.exclude_process(_peer_process(connection))
        # What exists now stays: the garbage collector need not look at it between steps.
        gc.collect()
        freeze_objects()
        return model

    try:
        serve(connection, load_and_freeze, on_end=lambda: os._exit(0))
    except Exception:
        _log.debug("the engine process ends", exc_info=True)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    os._exit(_EXIT_FAILED)


def _peer_process(connection: socket.socket) -> int:
    """The id of the HTTP process, which made the sockets: unix(7), SO_PEERCRED. Our parent may be another by now."""
    credentials = struct.Struct("3i")  # process, user and group
    process: int = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))[0]
    return process


def _log_through(connection: socket.socket) -> None:
    """Let the HTTP process write what is logged here: there is one standard output, and one format."""

    def send(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        fields = {name: value if isinstance(value, int | float) else str(value) for name, value in event.items()}
        with contextlib.suppress(OSError):
            connection.sendall(encode(LogLine(method, str(fields.pop("event")), fields)))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, send])


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
