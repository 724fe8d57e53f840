"""Keeps an engine process running: starts another one when it ends or hangs."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import anyio.to_thread
import structlog

from services.inference.engine.crash_counter import TOO_MANY, CrashCounter
from services.inference.engine.errors import EngineRestartedError, EngineUnavailableError, LoadError, LoadTimeoutError
from services.inference.engine.ipc import Ready
from services.inference.engine.types import Fault
from shared.system.errors import describe, is_no_thread

_log = structlog.get_logger("ownlm.engine")

_LOAD_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # seconds after each load that failed with a transient error
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.25, 30.0  # between attempts to start what the system has no room for
_CHECKS_PER_TIMEOUT = 4

T = TypeVar("T")


class EngineProcess(Protocol):
    """The process that runs the model; all methods block."""

    @property
    def pid(self) -> int | None:
        """Its id; None where it is not known."""

    def wait_ready(self) -> Ready:
        """Wait until the model is loaded.

        Raises:
            LoadTimeoutError: It takes too long.
            LoadError: It cannot be loaded, or the process ended.
            OSError: The system has no descriptor, process, thread or memory for it.
        """

    def end(self) -> str:
        """End the process, if it has not ended yet, and return how it ended, as in "with exit code 1".

        Raises:
            RuntimeError: It cannot even be killed, as where it is inside a driver that hangs.
        """

    def close(self) -> None:
        """End the process, also while it loads; one that cannot be killed is left to the system."""


P = TypeVar("P", bound=EngineProcess)


async def _no_attach(_process: object) -> None:
    """For a process that needs nothing of the event loop."""


class Supervisor(Generic[P]):
    """One loop: watch the engine process until it ends or hangs, then replace it.

    Args:
        process: The first one, which has loaded the model.
        ready: Its ready message.
        launch: Starts another one like it without waiting; it loads in the background, or in `wait_ready`.
        wait_end: Waits until the process has ended by itself.
        is_busy: Whether it has something to do, and so steps to complete.
        on_end: Called for each process that has ended, with the error that its requests fail with.
        attach: Awaited with each process that is ready.
        detach: Called when the process has ended, or is about to be ended.
        step_timeout: Seconds after which a busy process that completes no step is replaced; None: no limit.

    Attributes:
        process: The current one.
        ready: The ready message of the last process that was ready.
        fault: Why no process can run anything now, or None.
        exit_reason: Why the current process ends, where that is known.
        num_restarts: How many processes have ended in service.
    """

    def __init__(
        self,
        process: P,
        ready: Ready,
        launch: Callable[[], P],
        *,
        wait_end: Callable[[], Awaitable[object]],
        is_busy: Callable[[], bool],
        on_end: Callable[[EngineUnavailableError], None],
        attach: Callable[[P], Awaitable[None]] = _no_attach,
        detach: Callable[[], None] = lambda: None,
        step_timeout: float | None = None,
    ) -> None:
        self.process = process
        self.ready = ready
        self.fault: Fault | None = None
        self.exit_reason: str | None = None
        self.num_restarts = 0
        self._launch = launch
        self._wait_end = wait_end
        self._is_busy = is_busy
        self._on_end = on_end
        self._attach = attach
        self._detach = detach
        self._step_timeout = step_timeout
        self._crashes = CrashCounter()
        self._served_seconds = 0.0  # by the process that has ended
        self._num_silent = 0  # checks since the last step at which it was busy
        self._may_restart = True
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Attach the first process and supervise it; called once, on the event loop."""
        await self._attach(self.process)
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    def heard(self) -> None:
        """The process has completed a step, or shown otherwise that it works."""
        self._num_silent = 0

    def stop_restarting(self) -> None:
        """Replace no process from now on."""
        self._may_restart = False

    def close(self) -> None:
        """End the process; also where it was never started, or is loading."""
        self._may_restart = False
        if self._task is not None:
            self._task.cancel()
        self._detach()
        self.process.close()

    async def _supervise(self) -> None:
        try:
            while True:
                await self._watch()
                await self._replace()
        except EngineUnavailableError as error:
            self._on_end(error)
        except Exception as error:
            _log.error("engine restart failed", exc_info=error)
            self._on_end(self._give_up(f"the engine process cannot be started again: {describe(error)}"))

    def _give_up(self, reason: str) -> EngineUnavailableError:
        self.fault = Fault(reason, final=True)
        return EngineUnavailableError(reason)

    async def _watch(self) -> None:
        """Wait until the process has ended, or hangs, as in a driver's call that does not return.

        A process hangs also if all its requests ran into their own timeouts: new ones would, too. Silent checks are
        counted instead of time: how long this process was held up, or both, says nothing about the other one.
        """
        interval = None if self._step_timeout is None else self._step_timeout / _CHECKS_PER_TIMEOUT
        attached_at = time.monotonic()
        self._num_silent = 0
        while self._num_silent < _CHECKS_PER_TIMEOUT:
            self._num_silent += self._is_busy()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wait_end(), interval)
                break
        else:
            self.exit_reason = f"no step completed for {self._step_timeout:g} s (OWNLM_STEP_TIMEOUT)"
        self.fault = Fault("the engine process ended", final=False)
        self._detach()
        self.num_restarts += 1
        self._served_seconds = time.monotonic() - attached_at

    async def _replace(self) -> None:
        """End the process, fail its requests, and start others until one is ready.

        Raises:
            EngineUnavailableError: No other one is started: the service shuts down, or starting one is of no use.
        """
        ready = None
        while ready is None:
            reason = await self._end_process()
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
        await self._attach(self.process)
        self.fault = None
        _log.info("engine process restarted", restarts=self.num_restarts)

    async def _end_process(self) -> str:
        """End the process, and return how it ended and why."""
        reason = f"the engine process ended {await _in_thread(self.process.end)}"
        if self.exit_reason:
            reason += f": {self.exit_reason}"
        self.exit_reason = None
        _log.error("engine process ended", reason=reason)
        return reason

    async def _load(self) -> Ready | None:
        """Start a process and wait until it is ready, again after transient errors; None if it died meanwhile.

        Raises:
            EngineUnavailableError: It cannot load the model.
        """
        waits, retry_seconds = iter(_LOAD_WAITS), _RETRY_SECONDS
        while True:
            try:
                self.process = self._launch()
                return await _in_thread(self.process.wait_ready)
            except LoadTimeoutError as error:
                self.exit_reason = str(error)
                return None
            except LoadError as error:
                if not error.reported:
                    return None
                wait = next(waits, None)
                if wait is None or not error.transient:
                    raise self._give_up(f"the model cannot be loaded again: {error}") from error
                reason = f"the model cannot be loaded again yet: {error}"
            except OSError as error:  # no descriptor, process, thread or memory is left: that is no crash
                wait, retry_seconds = retry_seconds, min(2 * retry_seconds, _MAX_RETRY_SECONDS)
                reason = f"the engine process cannot be started again yet: {error.strerror}"
            self.fault = Fault(reason, final=False)
            _log.error("engine restart failed, trying again", reason=reason, next_try_seconds=wait)
            await _in_thread(self.process.end)
            await asyncio.sleep(wait)


def describe_exit(returncode: int) -> str:
    """How a process ended, by its return code as `subprocess` and `multiprocessing` have it."""
    if returncode >= 0:
        return f"with exit code {returncode}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    name = names.get(-returncode, str(-returncode))
    hint = ", possibly because the system ran out of memory" if name == "SIGKILL" else ""
    return f"by signal {name}{hint}"


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread, once the system has room for one."""
    while True:
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise
        await asyncio.sleep(_RETRY_SECONDS)
