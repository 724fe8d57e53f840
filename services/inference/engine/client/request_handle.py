"""The rows of one request, as its handler on the event loop sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.inference.engine.types import EngineError, RowEvent


class Job(AsyncIterator["list[RowEvent]"]):
    """Yields the events of all rows in the order of their steps, and ends when every row is finished or dropped.

    What has come since the last time is given in one list, so that a step costs the handler one turn and one write,
    however many rows it has. Unread events are at most `max_tokens` and one a row, which bounds what a client that
    reads slowly can pile up. All of it belongs to the event loop.

    Args:
        num_rows: The rows, numbered from 0.
        on_drop: Told how many rows the handler no longer wants and which one, None for all that are left; only rows
            that the engine has not finished.

    Attributes:
        submitted_at: When the rows were queued, by `time.perf_counter`.
        started_at: When the first of them got its place in the batch, or None.
        observer: Sees each event that is still wanted when it comes, which a handler that is slow does later.
    """

    def __init__(self, num_rows: int, on_drop: Callable[[int, int | None], None]) -> None:
        self.submitted_at = time.perf_counter()
        self.started_at: float | None = None
        self.observer: Callable[[RowEvent], None] | None = None
        self._on_drop = on_drop
        self._running = set(range(num_rows))  # rows that the engine has not finished
        self._unfinished = set(range(num_rows))  # rows whose last event the handler has not seen
        self._events: list[RowEvent] = []
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_running(self) -> int:
        """Rows that the engine works on, or will."""
        return len(self._running)

    def is_running(self, row: int) -> bool:
        """Whether the engine works on a row, or will, and the handler still wants it."""
        return row in self._running

    def drop(self, row: int) -> None:
        """Stop one row; the engine frees its place at its next step."""
        self._unfinished.discard(row)
        if row in self._running:
            self._running.discard(row)
            self._on_drop(1, row)

    def cancel(self) -> None:
        """Stop all rows and end the iteration; does nothing where they are finished."""
        self._unfinished.clear()
        if self._running:
            dropped = len(self._running)
            self._running.clear()
            self._on_drop(dropped, None)
        self._wake()

    async def __anext__(self) -> "list[RowEvent]":
        while True:
            events = self._take()
            if events:
                return events
            if not self._unfinished:
                raise StopAsyncIteration
            if self._error is not None:
                self._unfinished.clear()
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def start(self, at: float) -> None:
        """The engine's side: a row got its place, at a time by `time.perf_counter`."""
        if self.started_at is None:
            self.started_at = max(at, self.submitted_at)

    def receive(self, event: "RowEvent") -> None:
        """The engine's side: hand over an event."""
        if event.finish_reason is not None:
            self._running.discard(event.row)
        self._events.append(event)
        if self.observer is not None and event.row in self._unfinished:
            self.observer(event)
        self._wake()

    def fail(self, error: "EngineError") -> None:
        """The engine's side: it stopped all rows; the iteration ends with `error` after the events before it."""
        self._running.clear()
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> "list[RowEvent]":
        taken = []
        for event in self._events:
            if event.row in self._unfinished:
                taken.append(event)
                if event.finish_reason is not None:
                    self._unfinished.discard(event.row)
        self._events.clear()
        return taken
