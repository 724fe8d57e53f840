"""Several worker processes of a service behind one port, and their supervisor, which starts, replaces and ends them.

The supervisor listens and passes its socket to the workers, each of which accepts from it: connections in the backlog
survive a worker. A replacement accepts only once it is ready. Ready workers send heartbeats; one that stops is killed.
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
_HEARTBEAT = b"."
_HEARTBEAT_SECONDS = 1.0
_HUNG_SECONDS = 60.0  # without a heartbeat; a loaded machine may stall an event loop for some seconds
_MAX_DEATHS = 3
_DEATHS_WITHIN_SECONDS = 60.0
_KILL_AFTER_SECONDS = 5.0  # beyond the time that a worker has for its shutdown
_RETRY_SECONDS = 0.25  # before starting a worker is retried; doubles with each attempt
_MAX_RETRY_SECONDS = 30.0

EXIT_FAILED = 1

_log = structlog.get_logger("ownlm.workers")


class WorkersFailedError(Exception):
    """The workers cannot be kept alive; the message says why."""


@dataclass(frozen=True)
class WorkerLink:
    """A worker's connection to its supervisor.

    Attributes:
        listener: The socket to accept from.
        is_first: Whether no other worker serves while this one loads.
    """

    listener: socket.socket
    is_first: bool
    _supervisor: socket.socket

    @classmethod
    def from_environment(cls) -> "WorkerLink | None":
        """The link of this process; None if it is not a worker."""
        value = os.environ.pop(_LINK, None)
        if value is None:
            return None
        listener, supervisor, is_first = map(int, value.split())
        link = cls(socket.socket(fileno=listener), bool(is_first), socket.socket(fileno=supervisor))
        link._supervisor.setblocking(False)
        return link

    def send_heartbeats(self) -> None:
        """Report that this worker is ready, and from now on once a second that its event loop runs."""
        with contextlib.suppress(OSError):
            self._supervisor.send(_HEARTBEAT)
        asyncio.get_running_loop().call_later(_HEARTBEAT_SECONDS, self.send_heartbeats)

    def is_orphan(self) -> bool:
        """Whether the supervisor has ended."""
        try:
            return self._supervisor.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def supervise(listener: socket.socket, workers: int, shutdown_timeout: float) -> int:
    """Serve with `workers` processes until SIGTERM or Ctrl-C, and return the exit code.

    A worker that ends or hangs is replaced. A second signal kills all workers.

    Args:
        listener: A listening socket.
        workers: The number of processes.
        shutdown_timeout: Seconds that a worker has for its shutdown.

    Raises:
        WorkersFailedError: Three workers died within a minute, or the first one cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="ownlm-metrics-") as metrics_folder:
        return asyncio.run(_Supervisor(listener, workers, shutdown_timeout, metrics_folder).run())


@dataclass(eq=False)
class _Worker:
    process: Process
    link: socket.socket
    is_ready: bool = False

    async def wait(self) -> int:
        """Wait for its end, and kill it if its heartbeats stop; the exit code, negative for a signal."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            try:
                while await asyncio.wait_for(loop.sock_recv(self.link, 4096), _HUNG_SECONDS if self.is_ready else None):
                    self.is_ready = True
            except TimeoutError:
                _log.error("a worker hangs", pid=self.process.pid, seconds_without_heartbeat=_HUNG_SECONDS)
                _send(self, signal.SIGKILL)
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
        # The first one checks whether the model can be loaded, and compiles the kernels for the others.
        try:
            first = await self._start(is_first=True)
        except (OSError, RuntimeError) as error:  # out of descriptors, memory, processes or threads
            reason = getattr(error, "strerror", None) or describe(error)
            raise WorkersFailedError(f"no worker can be started: {reason}") from error
        if await loop.sock_recv(first.link, 1) != _HEARTBEAT:
            code = await first.wait()
            return code if code >= 0 else EXIT_FAILED
        first.is_ready = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(first))
                for _ in range(self._workers - 1):
                    group.create_task(self._keep())
        except* WorkersFailedError as failed:
            self._stop()
            await asyncio.gather(*(worker.wait() for worker in self._running))
            raise failed.exceptions[0] from None
        return 0

    async def _start_another(self) -> _Worker | None:
        """Start a worker, retrying while the system lacks resources, which is not a death. None at shutdown."""
        seconds = _RETRY_SECONDS
        while not self._stopping.is_set():
            try:
                return await self._start()
            except (OSError, RuntimeError) as error:  # out of descriptors, memory, processes or threads
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
                process_group=0,  # Ctrl-C reaches only the supervisor, which then ends the workers
            )
            on_failure.pop_all()
        worker = _Worker(process, ours)
        self._running.add(worker)
        if self._stopping.is_set():
            process.terminate()
        return worker

    async def _keep(self, worker: _Worker | None = None) -> None:
        """Keep one worker running, replacing it when it ends, until the service stops."""
        while worker := worker or await self._start_another():
            code = await worker.wait()
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
        """The first signal begins an orderly shutdown; the second one kills all workers."""
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
