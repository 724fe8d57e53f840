"""Keeps a worker process running: starts another one when it ends or hangs."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
import structlog

from services.inference.engine.client.child_process import ModelProcess
from services.inference.engine.client.connection import Connection
from services.inference.engine.crash_counter import LOAD_WAITS, TOO_MANY, CrashCounter
from services.inference.engine.errors import EngineRestartedError, EngineUnavailableError, LoadError, LoadTimeoutError
from services.inference.engine.ipc import Command, ExitReason, LogLine, Ready, StepOutput, log
from services.inference.engine.types import Fault
from shared.system.errors import is_no_thread

_log = structlog.get_logger("ownlm.engine")

T = TypeVar("T")

_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.25, 30.0  # between attempts to start what the system has no room for
_CHECKS_PER_TIMEOUT = 4


class Supervisor:
    """One loop: watch the worker until it ends or hangs, then replace it.

    Args:
        worker: The first one, which has loaded the model.
        ready: Its ready message.
        launch: Starts another one like it without waiting; it loads in the background.
        is_busy: Whether the worker has something to do, and so to send.
        on_step: Called with the output of each step.
        on_end: Called once for each worker that has ended, with the error that its requests fail with.
        step_timeout: Seconds after which a busy worker that sends nothing is replaced; None: no limit.

    Attributes:
        ready: The ready message of the current worker.
        fault: Why no worker can run anything now, or None.
        num_restarts: How many workers have ended.
    """

    def __init__(
        self,
        worker: ModelProcess,
        ready: Ready,
        launch: Callable[[], ModelProcess],
        *,
        is_busy: Callable[[], bool],
        on_step: Callable[[StepOutput], None],
        on_end: Callable[[EngineUnavailableError], None],
        step_timeout: float | None = None,
    ) -> None:
        self.ready = ready
        self.fault: Fault | None = None
        self.num_restarts = 0
        self._worker = worker
        self._launch = launch
        self._is_busy = is_busy
        self._on_step = on_step
        self._on_end = on_end
        self._step_timeout = step_timeout
        self._connection: Connection | None = None
        self._lost = asyncio.Event()  # the worker has closed its side
        self._exit_reason: str | None = None
        self._crashes = CrashCounter()
        self._served_seconds = 0.0  # by the worker that has ended
        self._attached_at = 0.0
        self._may_restart = True
        self._task: asyncio.Task[None] | None = None
        self._is_silent = False  # since the last check
        self._awaits_reply = False  # a command was sent, and each is answered by a step, which may be an empty one

    @property
    def worker_pid(self) -> int | None:
        """The process id of the current worker."""
        return self._worker.pid

    @property
    def unsent_bytes(self) -> int:
        """Of commands that the worker has not read yet."""
        return self._connection.unsent_bytes if self._connection is not None else 0

    async def start(self) -> None:
        """Connect to the worker and supervise it; called once, on the event loop."""
        await self._attach()
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    def send(self, command: Command) -> None:
        """Send a command; one to a worker that has ended is lost, as its requests are."""
        if self._connection is not None:
            self._awaits_reply = True
            self._connection.send(command)

    def stop_restarting(self) -> None:
        """Replace no worker from now on."""
        self._may_restart = False

    def close(self) -> None:
        """End the worker; also where it was never started."""
        self._may_restart = False
        if self._task is not None:
            self._task.cancel()
        self._detach()
        self._worker.close()

    async def _supervise(self) -> None:
        try:
            while True:
                await self._watch()
                await self._replace()
        except EngineUnavailableError as error:
            self._on_end(error)
        except Exception as error:
            _log.error("the restart failed", exc_info=error)
            self._on_end(self._give_up(f"the model's process cannot be started again: {type(error).__name__}: {error}"))

    def _give_up(self, reason: str) -> EngineUnavailableError:
        self.fault = Fault(reason, final=True)
        return EngineUnavailableError(reason)

    # The worker at work

    async def _attach(self) -> None:
        self._attached_at = time.monotonic()
        self._awaits_reply = False
        self._lost.clear()
        self._connection = Connection(self._receive, self._connection_lost)
        await self._connection.open(self._worker.connection)

    def _detach(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _receive(self, message: StepOutput | ExitReason | LogLine) -> None:
        self._is_silent = False
        if isinstance(message, LogLine):
            log(message)
        elif isinstance(message, ExitReason):
            self._exit_reason = message.reason
        else:
            self._awaits_reply = False
            self._on_step(message)

    def _connection_lost(self) -> None:
        self._detach()
        self.fault = Fault("the process that runs the model ended", final=False)
        self._lost.set()

    async def _watch(self) -> None:
        """Wait until the worker has ended, or hangs, as in a driver's call that does not return.

        A worker hangs also if all its requests ran into their own timeouts: new ones would, too. Silent checks are
        counted instead of time: how long this process was held up, or both, says nothing about the worker.
        """
        interval = None if self._step_timeout is None else self._step_timeout / _CHECKS_PER_TIMEOUT
        num_silent = 0
        while not self._lost.is_set() and num_silent < _CHECKS_PER_TIMEOUT:
            self._is_silent = self._awaits_reply or self._is_busy()
            try:
                await asyncio.wait_for(self._lost.wait(), interval)
            except TimeoutError:
                num_silent = num_silent + 1 if self._is_silent else 0
        if not self._lost.is_set():
            self._exit_reason = f"it was busy and sent nothing for {self._step_timeout:g} seconds, the limit"
            self._connection_lost()
        self.num_restarts += 1
        self._served_seconds = time.monotonic() - self._attached_at

    # The next worker

    async def _replace(self) -> None:
        """End the worker, fail its requests, and start others until one is ready.

        Raises:
            EngineUnavailableError: No other worker is started: the service shuts down, or starting one is of no use.
        """
        ready = None
        while ready is None:
            reason = await self._end_worker()
            self._crashes.add(self._served_seconds)
            self._served_seconds = 0.0  # by one that dies while it loads
            if self._crashes.too_many:
                raise self._give_up(f"{reason}, {TOO_MANY}")
            self.fault = Fault(reason, final=False)
            if not self._may_restart:
                raise EngineUnavailableError(f"{reason} while the server is shutting down")
            self._on_end(EngineRestartedError(f"{reason}; it is being restarted, send the request again"))
            await asyncio.sleep(self._crashes.restart_delay)
            ready = await self._load()
        if ready.identity != self.ready.identity:
            raise self._give_up("the model folder now holds another model; start the service again")
        self.ready = ready  # with as many blocks as there is memory for now
        await self._attach()
        if not self._lost.is_set():
            self.fault = None
            _log.info("the model's process was restarted", restarts=self.num_restarts)

    async def _end_worker(self) -> str:
        """End the worker, and return how it ended and why."""
        how = await _in_thread(self._worker.end)
        reason = f"the process that runs the model ended {how}"
        if self._exit_reason:
            reason += f": {self._exit_reason}"
        self._exit_reason = None
        _log.error("the model's process ended", reason=reason)
        return reason

    async def _load(self) -> Ready | None:
        """Start a worker and wait until it is ready, again after transient errors; None if it died meanwhile.

        Raises:
            EngineUnavailableError: It cannot load the model.
        """
        waits = iter(LOAD_WAITS)
        while True:
            self._worker = await self._start_worker()
            try:
                return await _in_thread(self._worker.wait_ready)
            except LoadTimeoutError as error:
                self._exit_reason = str(error)
                return None
            except LoadError as error:
                if not error.reported:
                    return None
                wait = next(waits, None)
                if wait is None or not error.transient:
                    raise self._give_up(f"the model cannot be loaded again: {error}") from error
                self.fault = Fault(f"the model cannot be loaded again yet: {error}", final=False)
                _log.warning("loading the model again failed", reason=str(error), next_try_seconds=wait)
            await _in_thread(self._worker.end)
            await asyncio.sleep(wait)

    async def _start_worker(self) -> ModelProcess:
        """Start a process, with retries while the system has no room for one: that is no crash of the worker."""
        seconds = _RETRY_SECONDS
        while True:
            try:
                return self._launch()
            except OSError as error:  # no descriptor, process or memory is left
                reason = f"the process that runs the model cannot be started again: {error.strerror}"
            self.fault = Fault(reason, final=False)
            _log.error("the model's process cannot be started", reason=reason, retry_seconds=seconds)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MAX_RETRY_SECONDS)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread, once the system has room for one."""
    while True:
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise
        await asyncio.sleep(_RETRY_SECONDS)
