"""The rows of one request, as its handler on the event loop sees them."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.inference.engine.request import EngineError, TokenEvent


class Job(AsyncIterator["TokenEvent"]):
    """Yields the events of all rows in the order of their steps, and ends when every row is finished or dropped.

    The engine's thread calls `post`; everything else belongs to the event loop. Unread events are at most
    `max_tokens` a row, which bounds what a client that reads slowly can pile up.
    """

    def __init__(self, num_rows: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[TokenEvent | EngineError] = asyncio.Queue()
        self._wanted = set(range(num_rows))  # rows whose events the handler still wants
        self._unfinished = set(range(num_rows))  # rows whose last event it has not seen

    def wants(self, row: int) -> bool:
        """Whether the engine should go on with this row; safe from any thread."""
        return row in self._wanted

    def drop(self, row: int) -> None:
        """Stop one row; the engine frees its place at its next step."""
        self._wanted.discard(row)
        self._unfinished.discard(row)

    def cancel(self) -> None:
        """Stop all rows; does nothing where they are finished."""
        self._wanted.clear()
        self._unfinished.clear()

    def fail(self, error: "EngineError") -> None:
        """End the iteration with `error`, and stop all rows."""
        self._wanted.clear()
        self._events.put_nowait(error)

    def post(self, event: "TokenEvent | EngineError") -> None:
        """Hand over an event from another thread."""
        try:
            self._loop.call_soon_threadsafe(self._receive, event)
        except RuntimeError:
            self._wanted.clear()  # the event loop is closed: nobody is left to read

    def _receive(self, event: "TokenEvent | EngineError") -> None:
        if isinstance(event, Exception):
            self.fail(event)
        else:
            self._events.put_nowait(event)

    async def __anext__(self) -> "TokenEvent":
        while self._unfinished:
            event = await self._events.get()
            if isinstance(event, Exception):
                self.cancel()
                raise event
            if event.row in self._unfinished:
                if event.finish_reason is not None:
                    self.drop(event.row)
                return event
        raise StopAsyncIteration
