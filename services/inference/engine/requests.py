"""The requests that an engine works on: how many there may be, their timeouts, and how they end."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from services.inference.engine.errors import (
    EngineError,
    EngineRestartedError,
    EngineUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
)
from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.types import Fault, SequenceEvent

_DRAIN_POLL_SECONDS = 0.02
_SHUTTING_DOWN = "the server is shutting down"


class LiveRequests:
    """The handles of all requests that run or wait. Used on the event loop only.

    Args:
        max_sequences: How many sequences may run or wait.
        cancel: Called with a request and the index of the sequence that the engine should stop; None: all of them.
        queue_timeout: Seconds that a request may wait until its first sequence is admitted; None: no limit.
        request_timeout: Seconds that a request may take in all.
    """

    def __init__(
        self,
        max_sequences: int,
        cancel: Callable[[int, int | None], None],
        *,
        queue_timeout: float | None = None,
        request_timeout: float | None = None,
    ) -> None:
        self._max_sequences = max_sequences
        self._cancel = cancel
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._handles: dict[int, RequestHandle] = {}
        self._num_requests = 0
        self._draining = False

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def num_live(self) -> int:
        """Sequences that run or wait."""
        return sum(handle.num_live for handle in self._handles.values())

    def get(self, request_id: int) -> RequestHandle | None:
        """The handle of a request; None once it has ended."""
        return self._handles.get(request_id)

    def check_room(self, num_sequences: int, fault: Fault | None) -> None:
        """Refuse sequences that there is no room for, or any while there is a fault.

        Raises:
            RequestTooLargeError: They can never run here.
            QueueFullError: There is no room for all of them.
            EngineUnavailableError: Shutting down, being restarted, or failed.
        """
        if num_sequences > self._max_sequences:
            raise RequestTooLargeError(f"{num_sequences} sequences exceed the limit of {self._max_sequences}")
        if self._draining:
            raise EngineUnavailableError(_SHUTTING_DOWN)
        if fault is not None:
            if fault.final:
                raise EngineUnavailableError(f"the server cannot serve: {fault.reason}")
            raise EngineRestartedError(f"the model is being restarted: {fault.reason}")
        num_live = self.num_live
        if num_live + num_sequences > self._max_sequences:
            raise QueueFullError(
                f"{num_live} sequences are running or waiting (limit: {self._max_sequences}); try again later"
            )

    def add(self, num_sequences: int) -> tuple[int, RequestHandle]:
        """Add a request; returns its number and its handle."""
        self._num_requests += 1
        request_id = self._num_requests
        handle = self._handles[request_id] = RequestHandle(num_sequences, partial(self._drop, request_id))
        handle.timers = self._timers(request_id)
        return request_id, handle

    def receive(self, event: SequenceEvent) -> None:
        """Pass an event on; ignored if the request has ended."""
        handle = self._handles.get(event.request_id)
        if handle is not None:
            handle.receive(event)
            if event.finish_reason is not None and handle.num_live == 0:
                self._forget(event.request_id)

    def fail(self, request_id: int, error: EngineError) -> None:
        """End a request with an error, in the engine too."""
        self._cancel(request_id, None)
        self._handles[request_id].fail(error)
        self._forget(request_id)

    def fail_all(self, error: EngineError) -> None:
        """End all requests with an error."""
        for request_id in list(self._handles):
            self.fail(request_id, error)

    async def drain(self, timeout: float) -> None:
        """Refuse new and waiting requests, let running ones finish for `timeout` seconds, then fail the rest."""
        deadline = time.monotonic() + timeout
        self.refuse_new()
        for request_id, handle in list(self._handles.items()):
            if handle.started_at is None:
                self.fail(request_id, EngineUnavailableError(_SHUTTING_DOWN))
        while self._handles and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        self.fail_all(EngineUnavailableError("the server shut down before this was finished"))

    def refuse_new(self) -> None:
        """Refuse requests from now on."""
        self._draining = True

    def _timers(self, request_id: int) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        timers = []
        if self._queue_timeout is not None:
            timers.append(loop.call_later(self._queue_timeout, self._queue_timed_out, request_id))
        if self._request_timeout is not None:
            error = RequestTimeoutError(f"the request exceeded the limit of {self._request_timeout:g} seconds")
            timers.append(loop.call_later(self._request_timeout, self.fail, request_id, error))
        return timers

    def _queue_timed_out(self, request_id: int) -> None:
        if self._handles[request_id].started_at is None:
            message = f"the request exceeded the limit of {self._queue_timeout:g} seconds in the queue; try again later"
            self.fail(request_id, QueueTimeoutError(message))

    def _drop(self, request_id: int, index: int | None) -> None:
        """Cancel what a handler no longer needs."""
        self._cancel(request_id, index)
        if self._handles[request_id].num_live == 0:
            self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        for timer in self._handles.pop(request_id).timers:
            timer.cancel()
