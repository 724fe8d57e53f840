"""Keeps a process running that runs the model: starts another one where it ends, or no longer moves."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
import structlog

from services.inference.engine.client.child_process import LoadError, LoadTimeoutError, Worker
from services.inference.engine.client.connection import Connection
from services.inference.engine.ipc import Command, Hello, LastWords, LogLine, Step, log
from services.inference.engine.types import EngineRestartedError, EngineUnavailableError, Fault
from shared.system.errors import is_no_thread

_log = structlog.get_logger("ownlm.engine")

T = TypeVar("T")

_MAX_DEATHS = 3
_DEATHS_WINDOW_SECONDS = 60.0
_RESTART_SECONDS = 0.25  # before the first restart; doubles with each death in the window
_MAX_RETRY_SECONDS = 30.0  # between attempts to start a process where the system has no room for one
_LOOKS_PER_TIMEOUT = 4
_LOAD_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # seconds after a load that failed for what may pass


class Supervisor:
    """The model's process, whichever it is at the time.

    Args:
        worker: The first one, which has loaded the model.
        hello: What it said then.
        launch: Starts another one like it, at once; it loads in the background.
        is_busy: Whether the process has something to do, and so to tell.
        on_step: Told what each step gave.
        on_end: Told, once for each process that has ended, with what its requests are to fail.
        step_timeout: Seconds without a word from a busy process after which it is replaced; None waits for ever.

    Attributes:
        hello: What the process said that runs now.
        fault: Why none can run anything now, or None.
        num_restarts: How many have ended.
    """

    def __init__(
        self,
        worker: Worker,
        hello: Hello,
        launch: Callable[[], Worker],
        *,
        is_busy: Callable[[], bool],
        on_step: Callable[[Step], None],
        on_end: Callable[[EngineUnavailableError], None],
        step_timeout: float | None = None,
    ) -> None:
        self.hello = hello
        self.fault: Fault | None = None
        self.num_restarts = 0
        self._worker = worker
        self._launch = launch
        self._is_busy = is_busy
        self._on_step = on_step
        self._on_end = on_end
        self._step_timeout = step_timeout
        self._connection: Connection | None = None
        self._last_words: str | None = None
        self._served = 0.0  # seconds that processes had the model loaded, as counted when each ended
        self._attached_at = 0.0
        self._deaths: deque[float] = deque()  # the newest, by `_served`
        self._may_restart = True
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_silent = False  # since the last look
        self._is_asked = False  # a command was sent, and each is answered by a step, though it may be an empty one

    @property
    def unsent_bytes(self) -> int:
        """Of commands that the process has not read yet."""
        return self._connection.unsent_bytes if self._connection is not None else 0

    async def start(self) -> None:
        """Begin to listen; called once, on the event loop."""
        await self._attach()

    def send(self, command: Command) -> None:
        """Send a command; one to a process that has ended is lost, as its requests are."""
        if self._connection is not None:
            self._is_asked = True
            self._connection.send(command)

    def stop_restarting(self) -> None:
        """Replace no process any more."""
        self._may_restart = False

    def close(self) -> None:
        """End the process; also where it was never started."""
        self._may_restart = False
        if self._restarting is not None:
            self._restarting.cancel()
        self._detach()
        self._worker.close()

    async def _attach(self) -> None:
        self._attached_at = time.monotonic()
        self._is_asked = False
        connection = self._connection = Connection(self._receive, self._lost)
        await connection.open(self._worker.connection)
        if self._connection is connection and self._step_timeout is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._step_timeout))

    def _detach(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _receive(self, message: Step | LastWords | LogLine) -> None:
        self._is_silent = False
        if isinstance(message, LogLine):
            log(message)
        elif isinstance(message, LastWords):
            self._last_words = message.reason
        else:
            self._is_asked = False
            self._on_step(message)

    async def _watch(self, timeout: float) -> None:
        """Replace a process that hangs, as in a driver's call that does not return.

        Also where no request waits for it any more, all having run into their own limits: those to come would, too.
        Looks are counted instead of time: it says nothing about the process how long this one was held up, or both.
        """
        silent_looks = 0
        while silent_looks < _LOOKS_PER_TIMEOUT:
            self._is_silent = self._is_asked or self._is_busy()
            await asyncio.sleep(timeout / _LOOKS_PER_TIMEOUT)
            silent_looks = silent_looks + 1 if self._is_silent else 0
        self._last_words = f"it was busy and gave no sign for {timeout:g} seconds, the limit"
        self._watching = None
        self._lost()

    def _lost(self) -> None:
        """The process has closed its side, so it has ended or is about to; or it is not waited for any longer."""
        self._detach()
        self.fault = Fault("the process that runs the model ended", final=False)
        self.num_restarts += 1
        self._served += time.monotonic() - self._attached_at
        self._restarting = asyncio.get_running_loop().create_task(self._restart())
        self._restarting.add_done_callback(self._restarted)

    def _restarted(self, task: asyncio.Task[None]) -> None:
        """End the service where restarting failed in a way that nobody foresaw: it would be restarting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the restart failed", exc_info=error)
            self._give_up(f"the model's process cannot be started again: {type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        self.fault = Fault(reason, final=True)
        self._on_end(EngineUnavailableError(reason))

    async def _restart(self) -> None:
        """Tell the running requests why they end, and start processes until one works or too many have ended."""
        while True:
            how = await _in_thread(self._worker.end)
            reason = f"the process that runs the model ended {how}" + (
                f": {self._last_words}" if self._last_words else ""
            )
            self._last_words = None
            _log.error("the model's process ended", reason=reason)
            if self._count_death():
                self._give_up(f"{reason}, the {_MAX_DEATHS}rd time within a minute of service")
                return
            self.fault = Fault(reason, final=False)
            if not self._may_restart:
                self._on_end(EngineUnavailableError(f"{reason} while the server is shutting down"))
                return
            self._on_end(EngineRestartedError(f"{reason}; it is being restarted, send the request again"))
            await asyncio.sleep(_RESTART_SECONDS * 2 ** len(self._deaths))
            if await self._relaunch():
                return

    def _count_death(self) -> bool:
        """Whether that was one too many: where loading takes minutes, there are no three within one by the clock."""
        self._deaths.append(self._served)
        while self._served - self._deaths[0] > _DEATHS_WINDOW_SECONDS:
            self._deaths.popleft()
        return len(self._deaths) >= _MAX_DEATHS

    async def _load(self) -> Hello:
        """Start a process and wait until it has loaded the model; another one, after a while, where it may yet.

        Raises:
            LoadError: The last one's.
        """
        waits = iter(_LOAD_WAITS)
        while True:
            self._worker = await self._start_worker()
            try:
                return await _in_thread(self._worker.wait_hello)
            except LoadError as error:
                wait = next(waits, None)
                if wait is None or not error.may_pass:
                    raise
                self.fault = Fault(f"the model cannot be loaded again yet: {error}", final=False)
                _log.warning("loading the model again failed", reason=str(error), next_try_seconds=wait)
            await _in_thread(self._worker.end)
            await asyncio.sleep(wait)

    async def _start_worker(self) -> Worker:
        """Start a process, however often it takes: that the system has no room for one is no death of the model."""
        seconds = _RESTART_SECONDS
        while True:
            try:
                return self._launch()
            except OSError as error:  # no descriptor, process or memory is left
                reason = f"the process that runs the model cannot be started again: {error.strerror}"
            self.fault = Fault(reason, final=False)
            _log.error("the model's process cannot be started", reason=reason, retry_seconds=seconds)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MAX_RETRY_SECONDS)

    async def _relaunch(self) -> bool:
        """Start another process; False where it ended before it was ready."""
        try:
            hello = await self._load()
        except LoadError as error:
            if isinstance(error, LoadTimeoutError):
                self._last_words = str(error)
            if error.told:
                self.fault = Fault(f"the model cannot be loaded again: {error}", final=True)
            return error.told
        if hello.identity != self.hello.identity:
            self.fault = Fault("the model folder now holds another model; start the service again", final=True)
            return True
        self.hello = hello  # with as many blocks as there is memory for now
        await self._attach()
        if self._connection is None:
            return True  # it has ended meanwhile, and is being replaced
        self.fault = None
        _log.info("the model's process was restarted", restarts=self.num_restarts)
        return True


async def _in_thread(work: Callable[[], T]) -> T:
    """Do what blocks in a thread, once the system has room for one."""
    while True:
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except RuntimeError as error:
            if not is_no_thread(error):
                raise
        await asyncio.sleep(_RESTART_SECONDS)
