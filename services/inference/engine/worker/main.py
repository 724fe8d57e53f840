"""`python -m services.inference.engine.worker.main`: the process that owns the model, started by `child_process`."""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from services.inference.engine.ipc import (
    Cancel,
    Command,
    EngineConfig,
    Hello,
    LastWords,
    LoadFault,
    LogLine,
    Step,
    Submit,
    decode,
    encode,
    receive,
    receive_encoded,
)
from services.inference.engine.runner.protocol import RunnerLostError
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import FailEvent
from shared.lm import ModelFolderError
from shared.system.errors import describe

if TYPE_CHECKING:
    from services.inference.engine.worker.model_loader import LoadedModel

_log = structlog.get_logger("ownlm.engine")

_MAX_FAILURES_IN_A_ROW = 3
_EXIT_FAILED = 1
_MAX_HELD_BYTES = 16 * 1024 * 1024  # as they travel: 5 million tokens of prompts
_LOOK_SECONDS = 0.1  # within which the other side's end is seen while no more is read


class PeerClosedError(Exception):
    """The other side has closed: an orderly end, and no fault of the model, whose own errors may be any `OSError`."""


class Inbox:
    """Commands as they come, read by a thread: a step, or loading, may take seconds, and the other side's end is seen.

    It holds `_MAX_HELD_BYTES` and a message at most: clients that come and go during a long step would fill the memory.
    What comes then stays in the socket, and the other side, which sees that, refuses requests in time.

    Args:
        connection: Where commands come from.
        on_end: Called in that thread when the other side has closed, whatever goes on.
    """

    def __init__(self, connection: socket.socket, on_end: Callable[[], None]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._commands: list[bytes] = []
        self._held = 0  # their bytes
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="inbox", daemon=True)
        self._thread.start()

    def take(self, *, wait: bool) -> Iterator[Command]:
        """Return the commands that have come, each decoded when it is asked for: decoded they take ten times as much.

        `wait` for one where there is none.

        Raises:
            PeerClosedError: The other side has closed.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._commands or self._ended)
            if self._ended:
                raise PeerClosedError
            commands, self._commands, self._held = self._commands, [], 0
            self._changed.notify()
        return map(decode, commands)

    def wait_for_end(self) -> None:
        """Read until the other side closes, without telling `on_end`."""
        self._on_end = lambda: None
        self._thread.join()

    def _read(self) -> None:
        while self._wait_for_room() and (command := receive_encoded(self._connection)) is not None:
            with self._changed:
                self._commands.append(command)
                self._held += len(command)
                self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._on_end()

    def _wait_for_room(self) -> bool:
        """Wait until more may be read; False where the other side has closed meanwhile, which no reading tells."""
        end = select.poll()
        end.register(self._connection, 0)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._held < _MAX_HELD_BYTES, _LOOK_SECONDS):
                    return True
            if end.poll(0):
                return False


class ModelLoop:
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
        self._failure = ""  # what the last row that failed was told

    def run(self) -> str:
        """Run until the model is lost, or has failed so often, whatever it ran, that only another process may help.

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
        return f"the model runs no step any more, {self._failure}"

    def turn(self) -> None:
        """Take what has come, waiting for it where there is nothing to do, and run a step."""
        core = self._core
        for command in self._inbox.take(wait=not core.has_work):
            if isinstance(command, Submit):
                core.submit(command.job, command.rows)
            elif isinstance(command, Cancel):
                core.cancel(command.job, command.row)
        began_at = time.perf_counter()
        events = core.step() if core.has_work else []
        if core.failures_in_a_row:
            self._failure = next((event.message for _, event in events if isinstance(event, FailEvent)), self._failure)
        _tell(self._connection, Step(events, core.stats(), began_at))


def serve(
    connection: socket.socket, load: "Callable[[EngineConfig], LoadedModel]", on_end: Callable[[], None] = lambda: None
) -> None:
    """Load the model that the first message names, and run it until the other side closes or it no longer works."""
    config = receive(connection)
    if config is None:
        return
    try:
        inbox = Inbox(connection, on_end)
        model = load(config)
    except Exception as error:
        _tell(connection, LoadFault(describe(error), may_pass=not isinstance(error, ModelFolderError)))
        raise
    try:
        core = EngineCore(
            model.runner, prefill_tokens=model.prefill_tokens, min_prefill_tokens=model.min_prefill_tokens
        )
        _tell(connection, model.hello)
        reason = ModelLoop(connection, inbox, core).run()
    except PeerClosedError:
        return
    except Exception as error:  # a fault of the core itself: only a fresh one is known to be sound
        _take_leave(connection, inbox, describe(error))
        raise
    _take_leave(connection, inbox, reason)


def _tell(connection: socket.socket, message: Step | Hello | LoadFault | LastWords) -> None:
    """Send a message.

    Raises:
        PeerClosedError: The other side has closed.
    """
    data = encode(message)
    try:
        connection.sendall(data)
    except OSError as error:
        raise PeerClosedError from error


def _take_leave(connection: socket.socket, inbox: Inbox, reason: str) -> None:
    """Say why this ends, and wait until the other side has heard it.

    It still sends commands meanwhile, and a socket that is closed with data unread loses what was written to it.
    """
    with contextlib.suppress(PeerClosedError, OSError):
        _tell(connection, LastWords(reason))
        connection.shutdown(socket.SHUT_WR)
    inbox.wait_for_end()


def load_model(config: EngineConfig) -> "LoadedModel":
    """See `runners.load_model`. Its libraries take seconds to import: the other side's end is seen by then."""
    from services.inference.engine.worker import model_loader as runners

    return runners.load_model(config)


def main(connection: socket.socket, load: "Callable[[EngineConfig], LoadedModel]" = load_model) -> NoReturn:
    """Be the model's process: until the other side closes, which is an orderly end, or the model no longer works."""
    # The HTTP process is told to end, drains, and closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _log_through(connection)

    def load_for_good(config: EngineConfig) -> "LoadedModel":
        model = load(config)
        # What is there now stays: the collector need not look at it between steps.
        gc.collect()
        gc.freeze()
        return model

    try:
        serve(connection, load_for_good, on_end=lambda: os._exit(0))
    except Exception:
        _log.debug("the model's process ends", exc_info=True)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    os._exit(_EXIT_FAILED)


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
