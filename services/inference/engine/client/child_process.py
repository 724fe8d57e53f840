"""Start the model's process and know how it ended: the HTTP process' side."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from services.inference.engine.ipc import EngineConfig, Hello, LastWords, LoadFault, LogLine, encode, log, receive

_ROOT = Path(__file__).resolve().parents[3]  # what `services` is imported from
_COMMAND = (sys.executable, "-m", "services.inference.engine.worker.main")
_END_SECONDS = 2.0
_KILLED_SECONDS = 10.0


class LoadError(ValueError):
    """The model could not be loaded; the message is for people.

    Attributes:
        told: Whether the process gave a reason before it ended.
        may_pass: Whether what it said may be different a while later, as where a process that has ended still holds
            memory of a GPU; else trying again is of no use.
    """

    def __init__(self, message: str, *, told: bool, may_pass: bool = False) -> None:
        super().__init__(message)
        self.told = told
        self.may_pass = may_pass


class LoadTimeoutError(LoadError):
    """The process takes longer to load the model than it may; it still runs."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the model was not loaded within {seconds:g} seconds, the limit (OWNLM_LOAD_TIMEOUT)", told=False
        )


class Worker(Protocol):
    """Something that runs the model at the other end of a socket.

    Attributes:
        connection: This end of it. Where the event loop has a transport on it, closing it takes effect in the loop's
            next turn only, shutting it down at once.
    """

    connection: socket.socket

    def wait_hello(self) -> Hello:
        """Wait until the model is loaded; blocks.

        Raises:
            LoadTimeoutError: It takes too long.
            LoadError: It cannot be, or the process ended.
        """

    def end(self) -> str:
        """Wait until it has ended, by force after a while, and say how: "with exit code 1"; blocks.

        Raises:
            RuntimeError: Not even force ends it, as where it is inside a driver that hangs.
        """

    def close(self) -> None:
        """End it."""


class ModelProcess:
    """`python -m services.inference.engine.worker.main` as a child of this process.

    It ends when the socket closes, and so with this process, however that ends. (PR_SET_PDEATHSIG would tie it to the
    thread that started it.) It is in a process group of its own: Ctrl-C is for the HTTP process, which drains first.

    Args:
        config: What it is to load, and how.
        command: What to run instead, with the socket's number as its last argument.
        load_timeout: Seconds that it may take to load the model; None waits for ever.

    Raises:
        OSError: The system has no descriptor, process or memory for it.
    """

    def __init__(
        self, config: EngineConfig, command: Sequence[str] = _COMMAND, *, load_timeout: float | None = None
    ) -> None:
        self._load_timeout = load_timeout
        self._started_at = time.monotonic()
        self.connection, theirs = socket.socketpair()
        search_path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(self.connection.close)
            self._popen = subprocess.Popen(  # noqa: S603 - our own command
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search_path},
                process_group=0,
            )
            on_failure.pop_all()
        with contextlib.suppress(OSError):  # it has ended, which `wait_hello` tells
            self.connection.sendall(encode(config))

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._popen.pid

    def wait_hello(self) -> Hello:
        """See `Worker.wait_hello`."""
        while isinstance(message := self._hear(), LogLine):
            log(message)
        if isinstance(message, Hello):
            return message
        if isinstance(message, LoadFault):
            raise LoadError(message.message, told=True, may_pass=message.may_pass)
        if isinstance(message, LastWords):
            raise LoadError(message.reason, told=True)
        raise LoadError(f"the process that loads the model ended {self.end()}", told=False)

    def _hear(self) -> Any | None:
        """Wait for what it says next; None where it has closed."""
        if self._load_timeout is not None:
            left = max(0.0, self._started_at + self._load_timeout - time.monotonic())
            word = select.poll()
            word.register(self.connection, select.POLLIN)
            if not word.poll(left * 1000):
                raise LoadTimeoutError(self._load_timeout)
        return receive(self.connection)

    def end(self) -> str:
        """See `Worker.end`."""
        with contextlib.suppress(OSError):  # it is the other side that has closed
            self.connection.shutdown(socket.SHUT_RDWR)  # at once, where closing waits for the event loop's transport
        self.connection.close()
        try:
            return _how(self._popen.wait(_END_SECONDS))
        except subprocess.TimeoutExpired:
            self._popen.kill()
        try:
            self._popen.wait(_KILLED_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"process {self.pid} does not end, though it was killed") from error
        return "by force, since it did not end by itself"

    def close(self) -> None:
        """See `Worker.close`; one that cannot be ended is left to the system."""
        with contextlib.suppress(RuntimeError):
            self.end()


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f"with exit code {returncode}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    name = names.get(-returncode, str(-returncode))
    hint = ", as it does where the system's memory runs out" if name == "SIGKILL" else ""
    return f"by the signal {name}{hint}"
