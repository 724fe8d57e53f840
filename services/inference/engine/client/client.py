"""The engine as the HTTP process sees it: sequences go to the worker process and events come back."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from services.inference.engine.client.child_process import ModelProcess
from services.inference.engine.client.request_handle import RequestHandle
from services.inference.engine.client.supervisor import Supervisor
from services.inference.engine.errors import (
    EngineError,
    EngineRestartedError,
    EngineUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
)
from services.inference.engine.ipc import Cancel, Ready, StepOutput, Submit
from services.inference.engine.types import EngineStats, FailEvent, Fault, SequenceRequest, StartEvent

_MAX_UNSENT_BYTES = 64 * 1024 * 1024
_DRAIN_POLL_SECONDS = 0.02

_SHUTTING_DOWN = "the server is shutting down"


class EngineClient:
    """Runs sequences in a worker process, which is restarted when it ends. Used on the event loop only.

    Args:
        worker: The process, which has loaded the model.
        ready: Its ready message.
        launch: Starts another one like it without waiting; it loads in the background.
        max_queue: How many sequences may wait for a slot.
        queue_timeout: Seconds that a request may wait until its first sequence is admitted; None waits for ever.
        request_timeout: Seconds that a request may take in all.
        step_timeout: Seconds after which a busy process that sends nothing is replaced; None never does.
    """

    def __init__(
        self,
        worker: ModelProcess,
        ready: Ready,
        launch: Callable[[], ModelProcess],
        *,
        max_queue: int,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        self._supervisor = Supervisor(
            worker,
            ready,
            launch,
            is_busy=lambda: bool(self._requests),
            on_step=self._take_step,
            on_end=self._worker_ended,
            step_timeout=step_timeout,
        )
        self._max_sequences = ready.num_slots + max_queue
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._requests: dict[int, RequestHandle] = {}
        self._num_requests = 0
        self._stats = EngineStats(kv_blocks_total=ready.num_blocks)
        self._earlier_stats = EngineStats()  # the counters of earlier processes
        self._draining = False

    @property
    def fault(self) -> Fault | None:
        """Why the engine cannot run anything now, or None."""
        return self._supervisor.fault

    @property
    def worker_pid(self) -> int | None:
        """The id of the worker process."""
        return self._supervisor.worker_pid

    async def start(self, on_admitted: Callable[[float], None] = lambda _seconds: None) -> None:
        """Connect to the process; called once.

        Args:
            on_admitted: Called with the seconds that each sequence waited for its slot.
        """
        self._on_admitted = on_admitted
        self._loop = asyncio.get_running_loop()
        await self._supervisor.start()

    def check_room(self, num_sequences: int) -> None:
        """Raise what `submit` would raise now for this many sequences, before their prompts are encoded.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """
        if num_sequences > self._max_sequences:
            raise RequestTooLargeError(f"{num_sequences} sequences, the limit is {self._max_sequences}")
        if self._draining:
            raise EngineUnavailableError(_SHUTTING_DOWN)
        if (fault := self.fault) is not None:
            if fault.final:
                raise EngineUnavailableError(f"the server cannot serve: {fault.reason}")
            raise EngineRestartedError(f"the model is being restarted: {fault.reason}")
        num_live = self._num_live
        if num_live + num_sequences > self._max_sequences:
            raise QueueFullError(
                f"{num_live} sequences are running or waiting and the limit is {self._max_sequences}; try again later"
            )
        if self._supervisor.unsent_bytes > _MAX_UNSENT_BYTES:
            raise QueueFullError("the model does not keep up with the requests that are waiting; try again later")

    def submit(self, requests: list[SequenceRequest]) -> RequestHandle:
        """Queue the sequences of a request: all of them, or none where it raises.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """
        for request in requests:
            request.check_fits_cache(self._supervisor.ready.num_blocks)
        self.check_room(len(requests))
        self._num_requests += 1
        request_id = self._num_requests
        handle = self._requests[request_id] = RequestHandle(len(requests), partial(self._drop, request_id))
        handle.timers = self._timers(request_id)
        self._supervisor.send(Submit(request_id, requests))
        return handle

    def stats(self) -> EngineStats:
        """Return the current numbers; sequences that the worker has not received yet are waiting."""
        num_live = self._num_live
        num_running, ready = min(self._stats.num_running, num_live), self._supervisor.ready
        return self._stats.after(self._earlier_stats)._replace(
            num_waiting=num_live - num_running,
            num_running=num_running,
            kv_blocks_total=ready.num_blocks,
            kv_blocks_allocated=max(self._stats.kv_blocks_allocated, ready.num_allocated_blocks),
            restarts=self._supervisor.num_restarts,
        )

    async def drain(self, timeout: float) -> None:
        """Refuse waiting requests, let running ones finish for `timeout` seconds, then fail the rest."""
        deadline = time.monotonic() + timeout
        self._draining = True
        self._supervisor.stop_restarting()
        for request_id, handle in list(self._requests.items()):
            if handle.started_at is None:
                self._fail(request_id, EngineUnavailableError(_SHUTTING_DOWN))
        while self._requests and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        self._fail_all(EngineUnavailableError("the server shut down before this was finished"))

    def close(self) -> None:
        """Stop for good, also where it was never started; what still runs is dropped."""
        self._draining = True
        self._supervisor.close()

    @property
    def _num_live(self) -> int:
        """Sequences that run or wait."""
        return sum(handle.num_live for handle in self._requests.values())

    # What the worker sends

    def _take_step(self, output: StepOutput) -> None:
        self._stats = output.stats
        for event in output.events:
            if isinstance(event, StartEvent):
                self._on_admitted(max(0.0, output.began_at - event.arrived_at))
            handle = self._requests.get(event.request_id)
            if handle is None:
                continue  # dropped while the step ran
            if isinstance(event, StartEvent):
                handle.start(output.began_at)
            elif isinstance(event, FailEvent):
                if handle.is_live(event.sequence_index):
                    self._fail(event.request_id, EngineError(event.message))
            else:
                handle.receive(event)
                if handle.num_live == 0:
                    self._forget(event.request_id)

    def _worker_ended(self, error: EngineUnavailableError) -> None:
        self._earlier_stats, self._stats = self.stats(), EngineStats()
        self._fail_all(error)

    # Requests

    def _timers(self, request_id: int) -> list[asyncio.TimerHandle]:
        timers = []
        if self._queue_timeout is not None:
            timers.append(self._loop.call_later(self._queue_timeout, self._queue_timed_out, request_id))
        if self._request_timeout is not None:
            error = RequestTimeoutError(f"the request took longer than {self._request_timeout:g} seconds, the limit")
            timers.append(self._loop.call_later(self._request_timeout, self._fail, request_id, error))
        return timers

    def _queue_timed_out(self, request_id: int) -> None:
        if self._requests[request_id].started_at is None:
            message = f"the request waited {self._queue_timeout:g} seconds in the queue, the limit; try again later"
            self._fail(request_id, QueueTimeoutError(message))

    def _drop(self, request_id: int, index: int | None) -> None:
        """Cancel what a handler no longer wants."""
        self._supervisor.send(Cancel(request_id, index))
        if self._requests[request_id].num_live == 0:
            self._forget(request_id)

    def _fail(self, request_id: int, error: EngineError) -> None:
        """End a request with an error, in the worker too."""
        self._supervisor.send(Cancel(request_id, None))
        self._requests[request_id].fail(error)
        self._forget(request_id)

    def _fail_all(self, error: EngineError) -> None:
        for request_id in list(self._requests):
            self._fail(request_id, error)

    def _forget(self, request_id: int) -> None:
        for timer in self._requests.pop(request_id).timers:
            timer.cancel()
