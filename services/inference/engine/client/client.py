"""The engine as the HTTP process sees it: rows go to the model's process and events come back, on the event loop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from services.inference.engine.client.child_process import Worker
from services.inference.engine.client.request_handle import Job
from services.inference.engine.client.supervisor import Supervisor
from services.inference.engine.ipc import Cancel, Hello, Step, Submit
from services.inference.engine.limits import check_fits
from services.inference.engine.types import (
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

_MAX_UNSENT_BYTES = 64 * 1024 * 1024
_DRAIN_POLL_SECONDS = 0.02

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
        step_timeout: Seconds after which a process that is busy and gives no sign is replaced; None never does.
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
        step_timeout: float | None = None,
    ) -> None:
        self._supervisor = Supervisor(
            worker,
            hello,
            launch,
            is_busy=lambda: bool(self._jobs),
            on_step=self._take_step,
            on_end=self._process_ended,
            step_timeout=step_timeout,
        )
        self._max_rows = hello.max_rows + max_queue
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._jobs: dict[int, _Open] = {}
        self._num_jobs = 0
        self._busy = 0  # rows of all jobs that the engine has not finished
        self._stats = EngineStats(kv_blocks_total=hello.num_blocks)
        self._stats_before = EngineStats()  # what earlier processes counted
        self._draining = False

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._supervisor.fault

    async def start(self, on_place: Callable[[float], None] = lambda _seconds: None) -> None:
        """Begin to listen to the process; see `Engine.start`."""
        self._on_place = on_place
        self._loop = asyncio.get_running_loop()
        await self._supervisor.start()

    def check_room(self, num_rows: int) -> None:
        """Raise what `submit` would raise now; see `Engine.check_room`."""
        if self._draining:
            raise EngineUnavailableError(_SHUTTING_DOWN)
        if (fault := self.fault) is not None:
            if fault.final:
                raise EngineUnavailableError(f"the server cannot serve: {fault.reason}")
            raise EngineRestartedError(f"the model is being restarted: {fault.reason}")
        if self._busy + num_rows > self._max_rows:
            raise QueueFullError(
                f"{self._busy} sequences are running or waiting and the limit is {self._max_rows}; try again later"
            )
        if self._supervisor.unsent_bytes > _MAX_UNSENT_BYTES:
            raise QueueFullError("the model does not keep up with the requests that are waiting; try again later")

    def submit(self, requests: list[RowRequest]) -> Job:
        """Queue rows that belong together; see `Engine.submit`."""
        for request in requests:
            check_fits(
                len(requests),
                len(request.prompt_ids),
                request.max_tokens,
                num_places=self._max_rows,
                num_blocks=self._supervisor.hello.num_blocks,
            )
        self.check_room(len(requests))
        self._num_jobs += 1
        number = self._num_jobs
        job = Job(len(requests), partial(self._drop, number))
        self._jobs[number] = _Open(job, self._timers(number))
        self._busy += len(requests)
        self._supervisor.send(Submit(number, requests))
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
            kv_blocks_total=self._supervisor.hello.num_blocks,
            prefix_tokens_looked_up=before.prefix_tokens_looked_up + stats.prefix_tokens_looked_up,
            prefix_tokens_hit=before.prefix_tokens_hit + stats.prefix_tokens_hit,
            prefill_tokens=before.prefill_tokens + stats.prefill_tokens,
            generated_tokens=before.generated_tokens + stats.generated_tokens,
            preemptions=before.preemptions + stats.preemptions,
            steps=before.steps + stats.steps,
            restarts=self._supervisor.num_restarts,
        )

    async def drain(self, timeout: float) -> None:
        """Refuse what waits, let running rows finish for `timeout` seconds, then fail the rest."""
        deadline = time.monotonic() + timeout
        self._draining = True
        self._supervisor.stop_restarting()
        for number, entry in list(self._jobs.items()):
            if entry.job.started_at is None:
                self._fail(number, EngineUnavailableError(_SHUTTING_DOWN))
        while self._jobs and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        self._fail_all(EngineUnavailableError("the server shut down before this was finished"))

    def close(self) -> None:
        """Stop for good; whatever still runs is dropped. Also where it was never started."""
        self._draining = True
        self._supervisor.close()

    # What the process tells

    def _take_step(self, message: Step) -> None:
        self._stats = message.stats
        for number, event in message.events:
            if isinstance(event, StartEvent):
                self._on_place(max(0.0, message.began_at - event.arrived_at))
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

    def _process_ended(self, error: EngineUnavailableError) -> None:
        self._stats_before, self._stats = self.stats(), EngineStats()
        self._fail_all(error)

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
        self._supervisor.send(Cancel(number, row))
        if self._jobs[number].job.num_running == 0:
            self._forget(number)

    def _fail(self, number: int, error: EngineError) -> None:
        """End a job with an error, in the engine too."""
        entry = self._jobs.get(number)
        if entry is not None:
            self._busy -= entry.job.num_running
            self._supervisor.send(Cancel(number, None))
            entry.job.fail(error)
            self._forget(number)

    def _fail_all(self, error: EngineError) -> None:
        for number in list(self._jobs):
            self._fail(number, error)

    def _forget(self, number: int) -> None:
        for timer in self._jobs.pop(number).timers:
            timer.cancel()
