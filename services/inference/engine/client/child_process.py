"""The engine process as a child of the HTTP process: start it, wait until it is ready, end it."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import EngineConfig, ExitReason, LoadFailure, LogLine, Ready, encode, log, receive
from services.inference.engine.supervisor import describe_exit

_ROOT = Path(__file__).resolve().parents[4]  # what `services` is imported from
_PROCESSORS = os.sched_getaffinity(0) if sys.platform == "linux" else set()  # before an engine process took one away
_COMMAND = (sys.executable, "-m", "services.inference.engine.worker.main")
_END_SECONDS = 2.0
_KILLED_SECONDS = 10.0


class ModelProcess:
    """`python -m services.inference.engine.worker.main` as a child of this process.

    It ends when the socket closes, and so with this process, however that ends. (PR_SET_PDEATHSIG would tie it to the
    thread that started it.) It is in a process group of its own: Ctrl-C is for the HTTP process, which drains first.

    Args:
        config: The model to load, and how.
        command: What to run instead, with the socket's number as its last argument.
        load_timeout: Seconds that it may take to load the model; None: no limit.

    Attributes:
        connection: This end of the socket. Where the event loop has a transport on it, closing it takes effect in the
            loop's next turn only, shutting it down at once.

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
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self.pid, _PROCESSORS)
        with contextlib.suppress(OSError):  # it has ended, which `wait_ready` reports
            self.connection.sendall(encode(config))

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._popen.pid

    def wait_ready(self) -> Ready:
        """Wait until the model is loaded; blocks.

        Raises:
            LoadTimeoutError: It takes too long.
            LoadError: It cannot be loaded, or the process ended.
        """
        while isinstance(message := self._receive(), LogLine):
            log(message)
        if isinstance(message, Ready):
            return message
        if isinstance(message, LoadFailure):
            raise LoadError(message.message, reported=True, transient=message.transient)
        if isinstance(message, ExitReason):
            raise LoadError(message.reason, reported=True)
        raise LoadError(f"the process that loads the model ended {self.end()}", reported=False)

    def _receive(self) -> Any | None:
        """Wait for the next message; None if the process has closed its side."""
        if self._load_timeout is not None:
            left = max(0.0, self._started_at + self._load_timeout - time.monotonic())
            readable = select.poll()
            readable.register(self.connection, select.POLLIN)
            if not readable.poll(left * 1000):
                raise LoadTimeoutError(self._load_timeout)
        return receive(self.connection)

    def end(self) -> str:
        """Wait until the process has ended, kill it after a while, and return how it ended; blocks.

        Returns:
            As in "the process ended with exit code 1".

        Raises:
            RuntimeError: It cannot even be killed, as where it is inside a driver that hangs.
        """
        with contextlib.suppress(OSError):  # it is the other side that has closed
            self.connection.shutdown(socket.SHUT_RDWR)  # at once, where closing waits for the event loop's transport
        self.connection.close()
        try:
            how = describe_exit(self._popen.wait(_END_SECONDS))
        except subprocess.TimeoutExpired:
            self._kill()
            how = "by SIGKILL, since it did not end by itself"
        _restore_affinity()
        return how

    def _kill(self) -> None:
        self._popen.kill()
        try:
            self._popen.wait(_KILLED_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"process {self.pid} did not end after SIGKILL") from error

    def close(self) -> None:
        """End the process; one that cannot be killed is left to the system."""
        with contextlib.suppress(RuntimeError):
            self.end()


def _restore_affinity() -> None:
    """Let all threads of this process, and processes that they start, run again on the processor that a worker took."""
    if sys.platform == "linux":
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                os.sched_setaffinity(int(task.name), _PROCESSORS)
