"""The sequences of one request, as its handler on the event loop sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from services.inference.engine.errors import EngineError
from services.inference.engine.types import SequenceEvent


class RequestHandle(AsyncIterator[list[SequenceEvent]]):
    """Yields the events of all sequences in the order of their steps; ends when each is finished or dropped.

    All events since the last time come in one list, so that a step costs the handler one turn and one write, however
    many sequences it has. Unread events are at most `max_tokens` and one a sequence, which limits what piles up for a
    client that reads slowly. Used on the event loop only.

    Args:
        num_sequences: The sequences, numbered from 0.
        on_drop: Called with the number of a sequence that the handler drops, or None where it drops all that are left;
            not for sequences that the engine has finished.

    Attributes:
        submitted_at: When the sequences were queued, by `time.perf_counter`.
        started_at: When the first of them was admitted to the batch, or None.
        observer: Called with each event of a live sequence as it arrives, which may be before the handler reads it.
        timers: For the client: the request's timeouts, until it has finished.
    """

    def __init__(self, num_sequences: int, on_drop: Callable[[int | None], None]) -> None:
        self.submitted_at = time.perf_counter()
        self.started_at: float | None = None
        self.observer: Callable[[SequenceEvent], None] | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self._on_drop = on_drop
        self._live = set(range(num_sequences))  # neither finished nor dropped
        self._events: list[SequenceEvent] = []
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_live(self) -> int:
        """Sequences that the engine still runs, or will."""
        return 0 if self._error is not None else len(self._live)

    def is_live(self, index: int) -> bool:
        """Whether the engine still runs a sequence, or will."""
        return self._error is None and index in self._live

    def drop(self, index: int) -> None:
        """Stop one sequence, and discard its unread events; the engine frees its slot before its next step."""
        self._events = [event for event in self._events if event.sequence_index != index]
        was_live = self.is_live(index)
        self._live.discard(index)
        if was_live:
            self._on_drop(index)

    def cancel(self) -> None:
        """Stop all sequences and end the iteration; does nothing if they are finished."""
        self._events.clear()
        had_live = self.num_live > 0
        self._live.clear()
        if had_live:
            self._on_drop(None)
        self._wake()

    async def __anext__(self) -> list[SequenceEvent]:
        while not self._events:
            if not self._live:
                raise StopAsyncIteration
            if self._error is not None:
                self._live.clear()
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    def start(self, at: float) -> None:
        """For the client: a sequence was admitted, at a time by `time.perf_counter`."""
        if self.started_at is None:
            self.started_at = max(at, self.submitted_at)

    def receive(self, event: SequenceEvent) -> None:
        """For the client: an event of a sequence; ignored if it was dropped."""
        if event.sequence_index not in self._live:
            return
        if event.finish_reason is not None:
            self._live.discard(event.sequence_index)
        self._events.append(event)
        if self.observer is not None:
            self.observer(event)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """For the client: the engine stopped all live sequences; iteration raises `error` after the unread events."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
