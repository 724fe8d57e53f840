"""The rows of one request, as its handler on the event loop sees them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.inference.engine.request import EngineError, RowEvent


class Job(AsyncIterator["list[RowEvent]"]):
    """Yields the events of all rows in the order of their steps, and ends when every row is finished or dropped.

    What has come since the last time is given in one list, so that a step costs the handler one turn and one write,
    however many rows it has. Unread events are at most `max_tokens` and one a row, which bounds what a client that
    reads slowly can pile up. The engine's thread may call `wants` and `post`; all else belongs to the event loop.
    """

    def __init__(self, num_rows: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[RowEvent] = []
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = set(range(num_rows))  # rows that the engine should go on with
        self._unfinished = set(range(num_rows))  # rows whose last event the handler has not seen

    def wants(self, row: int) -> bool:
        """Whether the engine should go on with this row."""
        return row in self._wanted

    def drop(self, row: int) -> None:
        """Stop one row; the engine frees its place at its next step."""
        self._wanted.discard(row)
        self._unfinished.discard(row)

    def cancel(self) -> None:
        """Stop all rows and end the iteration; does nothing where they are finished."""
        self._wanted.clear()
        self._unfinished.clear()
        self._wake()

    def fail(self, error: "EngineError") -> None:
        """Stop all rows, and end the iteration with `error` after the events that came before it."""
        self._wanted.clear()
        self._error = self._error or error
        self._wake()

    def receive(self, events: "Sequence[RowEvent]") -> None:
        """Take the events of a step."""
        self._events += events
        self._wake()

    def post(self, event: "RowEvent | EngineError") -> None:
        """Hand over an event or an error from another thread."""
        try:
            if isinstance(event, Exception):
                self._loop.call_soon_threadsafe(self.fail, event)
            else:
                self._loop.call_soon_threadsafe(self.receive, (event,))
        except RuntimeError:
            self._wanted.clear()  # the event loop is closed: nobody is left to read

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __anext__(self) -> "list[RowEvent]":
        while True:
            events = self._take()
            if events:
                return events
            if not self._unfinished:
                raise StopAsyncIteration
            if self._error is not None:
                self.cancel()
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter

    def _take(self) -> "list[RowEvent]":
        taken = []
        for event in self._events:
            if event.row in self._unfinished:
                taken.append(event)
                if event.finish_reason is not None:
                    self.drop(event.row)
        self._events.clear()
        return taken
