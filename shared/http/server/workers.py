"""Several processes of a service behind one port: started, watched, replaced and ended by the process that is run.

The supervisor listens and hands its socket to the workers, each of which accepts from it: connections that wait survive
a worker. A worker that took another's place accepts only once it can serve.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections import deque
from dataclasses import dataclass

import structlog
from prometheus_client.multiprocess import mark_process_dead

from shared.system.errors import describe

_LINK = "_OWNLM_WORKER"
_READY = b"r"
_MAX_DEATHS = 3
_DEATHS_WITHIN_SECONDS = 60.0
_KILL_AFTER_SECONDS = 5.0  # beyond the time that a worker has to end
_RETRY_SECONDS = 0.25  # before another attempt to start a worker; doubles with each
_MAX_RETRY_SECONDS = 30.0

_log = structlog.get_logger("ownlm.workers")


EXIT_FAILED = 1


class WorkersFailedError(Exception):
    """The workers cannot be kept alive; the message says why."""


@dataclass(frozen=True)
class WorkerLink:
    """What a worker has of its supervisor.

    Attributes:
        listener: The socket to accept from.
        is_first: Whether no other worker is there to serve while this one loads.
    """

    listener: socket.socket
    is_first: bool
    _supervisor: socket.socket

    @classmethod
    def from_environment(cls) -> "WorkerLink | None":
        """The link of this process, where it is a worker."""
        given = os.environ.pop(_LINK, None)
        if given is None:
            return None
        listener, supervisor, is_first = map(int, given.split())
        link = cls(socket.socket(fileno=listener), bool(is_first), socket.socket(fileno=supervisor))
        link._supervisor.setblocking(False)
        return link

    def tell_ready(self) -> None:
        """Say that this worker serves."""
        with contextlib.suppress(OSError):
            self._supervisor.send(_READY)

    def is_orphan(self) -> bool:
        """Whether the supervisor is gone, by whatever end."""
        try:
            return self._supervisor.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def supervise(listener: socket.socket, workers: int, shutdown_timeout: float) -> int:
    """Serve with `workers` processes until SIGTERM or Ctrl-C, and return the exit code.

    A worker that ends is replaced. A second signal ends all at once.

    Args:
        listener: A socket that listens.
        workers: How many processes.
        shutdown_timeout: Seconds that a worker takes at most to end.

    Raises:
        WorkersFailedError: When three workers died within a minute, or not even the first can be started.
    """
    with tempfile.TemporaryDirectory(prefix="ownlm-metrics-") as metrics_folder:
        return asyncio.run(_Supervisor(listener, workers, shutdown_timeout, metrics_folder).run())


@dataclass(frozen=True)
class _Worker:
    process: Process
    link: socket.socket

    async def ended(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        code = await self.process.wait()
        self.link.close()
        return code


class _Supervisor:
    def __init__(self, listener: socket.socket, workers: int, shutdown_timeout: float, metrics_folder: str) -> None:
        self._listener = listener
        self._workers = workers
        self._shutdown_timeout = shutdown_timeout
        self._metrics_folder = metrics_folder
        self._running: set[_Worker] = set()
        self._deaths: deque[float] = deque(maxlen=_MAX_DEATHS)
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # The first one finds out whether there is anything to serve, and compiles for the others.
        try:
            first = await self._start(is_first=True)
        except (OSError, RuntimeError) as error:  # no descriptor, memory, process or thread is left
            reason = getattr(error, "strerror", None) or describe(error)
            raise WorkersFailedError(f"no worker can be started: {reason}") from error
        if await loop.sock_recv(first.link, 1) != _READY:
            code = await first.ended()
            return code if code >= 0 else EXIT_FAILED
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(first))
                for _ in range(self._workers - 1):
                    group.create_task(self._keep())
        except* WorkersFailedError as failed:
            self._stop()
            await asyncio.gather(*(worker.ended() for worker in self._running))
            raise failed.exceptions[0] from None
        return 0

    async def _start_another(self) -> _Worker | None:
        """Start a worker, however often it takes: that the system has no room for one is no death. None at the end."""
        seconds = _RETRY_SECONDS
        while not self._stopping.is_set():
            try:
                return await self._start()
            except (OSError, RuntimeError) as error:  # no descriptor, memory, process or thread is left
                _log.error("a worker cannot be started", reason=describe(error), retry_seconds=seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
            seconds = min(2 * seconds, _MAX_RETRY_SECONDS)
        return None

    async def _start(self, *, is_first: bool = False) -> _Worker:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        descriptors = (self._listener.fileno(), theirs.fileno())
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *sys.orig_argv[1:],
                env={
                    **os.environ,
                    _LINK: f"{descriptors[0]} {descriptors[1]} {int(is_first)}",
                    "PROMETHEUS_MULTIPROC_DIR": self._metrics_folder,
                },
                pass_fds=descriptors,
                process_group=0,  # Ctrl-C is for the supervisor, which tells the workers
            )
            on_failure.pop_all()
        worker = _Worker(process, ours)
        self._running.add(worker)
        if self._stopping.is_set():
            process.terminate()
        return worker

    async def _keep(self, worker: _Worker | None = None) -> None:
        """Have a worker, and others in its place, until the service stops."""
        while worker := worker or await self._start_another():
            code = await worker.ended()
            self._running.discard(worker)
            mark_process_dead(worker.process.pid, self._metrics_folder)  # type: ignore[no-untyped-call]
            if self._stopping.is_set():
                return
            _log.error("a worker died", pid=worker.process.pid, **_cause(code))
            self._count_death(code)
            worker = None

    def _count_death(self, code: int) -> None:
        self._deaths.append(time.monotonic())
        if len(self._deaths) == _MAX_DEATHS and self._deaths[-1] - self._deaths[0] < _DEATHS_WITHIN_SECONDS:
            last = ", ".join(f"{name} {value}" for name, value in _cause(code).items())
            raise WorkersFailedError(
                f"{_MAX_DEATHS} workers died within {_DEATHS_WITHIN_SECONDS:.0f} seconds, the last one with {last}"
            )

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal asks for an orderly end; the second one ends all at once."""
        if not self._stopping.is_set():
            self._stop()
            return
        self._kill()
        shutil.rmtree(self._metrics_folder, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _stop(self) -> None:
        self._stopping.set()
        for worker in self._running:
            _send(worker, signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._shutdown_timeout + _KILL_AFTER_SECONDS, self._kill)

    def _kill(self) -> None:
        for worker in self._running:
            _send(worker, signal.SIGKILL)


def _send(worker: _Worker, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.process.send_signal(number)


def _cause(code: int) -> dict[str, str | int]:
    return {"exit_code": code} if code >= 0 else {"signal": signal.Signals(-code).name}
