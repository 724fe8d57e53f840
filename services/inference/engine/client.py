"""The engine as the HTTP process sees it: rows go to the model's process and events come back, on the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio.to_thread
import structlog

from services.inference.engine.job import Job
from services.inference.engine.limits import check_fits
from services.inference.engine.messages import (
    Cancel,
    Command,
    Hello,
    LastWords,
    LogLine,
    MessageReader,
    Step,
    Submit,
    encode,
    log,
)
from services.inference.engine.request import (
    EngineError,
    EngineRestartedError,
    EngineStats,
    EngineUnavailableError,
    FailEvent,
    Fault,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RowRequest,
    StartEvent,
)
from services.inference.engine.spawn import LoadError, Worker

_log = structlog.get_logger("ownlm.engine")

_READ_BYTES = 256 * 1024
_MAX_UNSENT_BYTES = 64 * 1024 * 1024
_DRAIN_POLL_SECONDS = 0.02
_MAX_DEATHS = 3
_DEATHS_WINDOW_SECONDS = 60.0
_RESTART_SECONDS = 0.25  # before the first restart; doubles with each death in the window

_SHUTTING_DOWN = "the server is shutting down"


@dataclass(slots=True)
class _Open:
    """A job that the engine works on, and what ends it when it takes too long."""

    job: Job
    timers: list[asyncio.TimerHandle]


class EngineClient:
    """An `Engine` in a process of its own; when that process ends, another one is started.

    Args:
        worker: The process, which has loaded the model.
        hello: What it said then.
        launch: Starts another one like it, at once; it loads in the background.
        max_queue: How many rows may wait for a place in the batch.
        queue_timeout: Seconds that a request may wait until its first row starts; None waits for ever.
        request_timeout: Seconds that a request may take in all.
    """

    def __init__(
        self,
        worker: Worker,
        hello: Hello,
        launch: Callable[[], Worker],
        *,
        max_queue: int,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
    ) -> None:
        self.hello = hello
        self._worker = worker
        self._launch = launch
        self._max_rows = hello.max_rows + max_queue
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._jobs: dict[int, _Open] = {}
        self._num_jobs = 0
        self._busy = 0  # rows of all jobs that the engine has not finished
        self._reader = MessageReader()
        self._unsent = bytearray()
        self._stats = EngineStats(kv_blocks_total=hello.num_blocks)
        self._stats_before = EngineStats()  # what earlier processes counted
        self._last_words: str | None = None
        self._deaths: deque[float] = deque()
        self._fault: Fault | None = None
        self._draining = False
        self._attached = False  # whether the event loop watches the worker's socket
        self._restarting: asyncio.Task[None] | None = None

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._fault

    def start(self) -> None:
        """Begin to listen to the process; called once, on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._attach()

    def check_room(self, num_rows: int) -> None:
        """Raise what `submit` would raise now; see `Engine.check_room`."""
        if self._draining:
            raise EngineUnavailableError(_SHUTTING_DOWN)
        if self._fault is not None:
            raise EngineRestartedError(f"the model is being restarted: {self._fault.reason}")
        if self._busy + num_rows > self._max_rows:
            raise QueueFullError(
                f"{self._busy} sequences are running or waiting and the limit is {self._max_rows}; try again later"
            )
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            raise QueueFullError("the model does not keep up with the requests that are waiting; try again later")

    def submit(self, requests: list[RowRequest]) -> Job:
        """Queue rows that belong together; see `Engine.submit`."""
        for request in requests:
            check_fits(
                len(requests),
                len(request.prompt_ids),
                request.max_tokens,
                num_places=self._max_rows,
                num_blocks=self.hello.num_blocks,
            )
        self.check_room(len(requests))
        self._num_jobs += 1
        number = self._num_jobs
        job = Job(len(requests), partial(self._drop, number))
        self._jobs[number] = _Open(job, self._timers(number))
        self._busy += len(requests)
        self._send(Submit(number, requests))
        return job

    def stats(self) -> EngineStats:
        """Count what is going on; rows that the engine has not heard of yet are waiting."""
        stats, before = self._stats, self._stats_before
        running = min(stats.running_rows, self._busy)
        return EngineStats(
            waiting_rows=self._busy - running,
            running_rows=running,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_cached=stats.kv_blocks_cached,
            kv_blocks_total=stats.kv_blocks_total,
            prefix_tokens_looked_up=before.prefix_tokens_looked_up + stats.prefix_tokens_looked_up,
            prefix_tokens_hit=before.prefix_tokens_hit + stats.prefix_tokens_hit,
            prefill_tokens=before.prefill_tokens + stats.prefill_tokens,
            generated_tokens=before.generated_tokens + stats.generated_tokens,
            preemptions=before.preemptions + stats.preemptions,
            steps=before.steps + stats.steps,
            restarts=before.restarts,
        )

    async def drain(self, timeout: float) -> None:
        """Refuse what waits, let running rows finish for `timeout` seconds, then fail the rest."""
        deadline = time.monotonic() + timeout
        self._draining = True
        for number, entry in list(self._jobs.items()):
            if entry.job.started_at is None:
                self._fail(number, EngineUnavailableError(_SHUTTING_DOWN))
        while self._jobs and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        self._fail_all(EngineUnavailableError("the server shut down before this was finished"))

    def close(self) -> None:
        """Stop for good; whatever still runs is dropped. Also where it was never started."""
        self._draining = True
        if self._restarting is not None:
            self._restarting.cancel()
        self._detach()
        self._worker.close()

    # The process' messages

    def _attach(self) -> None:
        self._reader = MessageReader()
        self._worker.connection.setblocking(False)
        self._attached = True
        self._loop.add_reader(self._worker.connection, self._readable)

    def _detach(self) -> None:
        if self._attached:
            self._attached = False
            self._loop.remove_reader(self._worker.connection)
            self._loop.remove_writer(self._worker.connection)
        self._unsent.clear()

    def _readable(self) -> None:
        try:
            data = self._worker.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for message in self._reader.feed(data):
            self._receive(message)

    def _receive(self, message: Step | LastWords | LogLine) -> None:
        if isinstance(message, LogLine):
            log(message)
        elif isinstance(message, LastWords):
            self._last_words = message.reason
        else:
            self._take_step(message)

    def _take_step(self, message: Step) -> None:
        self._stats = message.stats
        for number, event in message.events:
            entry = self._jobs.get(number)
            if entry is None:
                continue  # dropped while the step ran
            if isinstance(event, StartEvent):
                entry.job.start(message.began_at)
            elif isinstance(event, FailEvent):
                if entry.job.is_running(event.row):
                    self._fail(number, EngineError(event.message))
            else:
                before = entry.job.num_running
                entry.job.receive(event)
                self._busy -= before - entry.job.num_running
                if entry.job.num_running == 0:
                    self._forget(number)

    def _send(self, command: Command) -> None:
        """Send a command, or the part of it that the socket takes now and the rest when it takes more."""
        if self._fault is not None:
            return
        data = encode(command)
        if not self._unsent:
            data = data[self._write(data) :]
            if data:
                self._loop.add_writer(self._worker.connection, self._writable)
        self._unsent += data

    def _writable(self) -> None:
        del self._unsent[: self._write(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._worker.connection)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._worker.connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the process has ended, which reading tells

    # Jobs

    def _timers(self, number: int) -> list[asyncio.TimerHandle]:
        timers = []
        if self._queue_timeout is not None:
            timers.append(self._loop.call_later(self._queue_timeout, self._waited_too_long, number))
        if self._request_timeout is not None:
            error = RequestTimeoutError(f"the request took longer than {self._request_timeout:g} seconds, the limit")
            timers.append(self._loop.call_later(self._request_timeout, self._fail, number, error))
        return timers

    def _waited_too_long(self, number: int) -> None:
        entry = self._jobs.get(number)
        if entry is not None and entry.job.started_at is None:
            message = f"the request waited {self._queue_timeout:g} seconds for its turn, the limit; try again later"
            self._fail(number, QueueTimeoutError(message))

    def _drop(self, number: int, num_rows: int, row: int | None) -> None:
        """Rows that a handler no longer wants."""
        self._busy -= num_rows
        self._send(Cancel(number, row))
        if self._jobs[number].job.num_running == 0:
            self._forget(number)

    def _fail(self, number: int, error: EngineError) -> None:
        """End a job with an error, in the engine too."""
        entry = self._jobs.get(number)
        if entry is not None:
            self._busy -= entry.job.num_running
            self._send(Cancel(number, None))
            entry.job.fail(error)
            self._forget(number)

    def _fail_all(self, error: EngineError) -> None:
        for number in list(self._jobs):
            self._fail(number, error)

    def _forget(self, number: int) -> None:
        for timer in self._jobs.pop(number).timers:
            timer.cancel()

    # The process' end

    def _lost(self) -> None:
        """The process has closed its side: it has ended, or is about to."""
        self._detach()
        self._fault = Fault("the process that runs the model ended", final=False)
        before = self.stats()
        self._stats_before = before._replace(restarts=before.restarts + 1)
        self._stats = EngineStats()
        self._restarting = self._loop.create_task(self._restart())
        self._restarting.add_done_callback(self._restarted)

    def _restarted(self, task: asyncio.Task[None]) -> None:
        """End the service where restarting failed in a way that nobody foresaw: it would be restarting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the restart failed", exc_info=error)
            reason = f"the model's process cannot be started again: {type(error).__name__}: {error}"
            self._fault = Fault(reason, final=True)
            self._fail_all(EngineUnavailableError(reason))

    async def _restart(self) -> None:
        """Tell the running requests why they end, and start processes until one works or too many have ended."""
        while True:
            how = await anyio.to_thread.run_sync(self._worker.end, abandon_on_cancel=True)
            reason = f"the process that runs the model ended {how}" + (
                f": {self._last_words}" if self._last_words else ""
            )
            self._last_words = None
            _log.error("the model's process ended", reason=reason, failed_requests=len(self._jobs))
            if self._count_death():
                self._fault = Fault(f"{reason}, the {_MAX_DEATHS}rd time within a minute", final=True)
                self._fail_all(EngineUnavailableError(self._fault.reason))
                return
            self._fault = Fault(reason, final=False)
            self._fail_all(EngineRestartedError(f"{reason}; it is being restarted, send the request again"))
            if self._draining:
                return
            await asyncio.sleep(_RESTART_SECONDS * 2 ** len(self._deaths))
            if await self._relaunch():
                return

    def _count_death(self) -> bool:
        """Whether that was one too many."""
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > _DEATHS_WINDOW_SECONDS:
            self._deaths.popleft()
        return len(self._deaths) >= _MAX_DEATHS

    async def _relaunch(self) -> bool:
        """Start another process; False where it ended before it was ready."""
        try:
            self._worker = self._launch()
            hello = await anyio.to_thread.run_sync(self._worker.wait_hello, abandon_on_cancel=True)
        except LoadError as error:
            if not error.told:
                return False
            self._fault = Fault(f"the model cannot be loaded again: {error}", final=True)
            return True
        except OSError as error:
            self._last_words = f"and it could not be started again ({error})"
            return False
        if hello.identity != self.hello.identity:
            self._fault = Fault("the model folder now holds another model; start the service again", final=True)
            return True
        self.hello = hello
        self.hello = hello  # with as many blocks as there is memory for now
        self._stats = EngineStats(kv_blocks_total=hello.num_blocks)
        self._fault = None
        self._attach()
        _log.info("the model's process was restarted", restarts=self._stats_before.restarts)
        return True
