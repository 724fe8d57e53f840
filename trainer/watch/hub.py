"""Sends what is new in watched runs to every open page."""

import asyncio
import logging
from collections.abc import AsyncIterator

from shared.system.errors import describe
from trainer.watch.runs import WatchedRuns

logger = logging.getLogger(__name__)

INTERVAL = 1.5
"""Seconds between two looks at the folders, while a page is open: points appear within two, and it takes less than a
thousandth of one processor."""

_STILL_HERE = 15.0  # seconds of silence after which a connection is tried
_MOST_BEHIND = 60  # messages that a page may be behind
_END = b"event: end\ndata: {}\n\n"


class Hub:
    """Reads the runs while at least one page is open, once for all of them."""

    def __init__(self, runs: WatchedRuns) -> None:
        self._runs = runs
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._turn = asyncio.Lock()  # of the runs
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def frames(self) -> AsyncIterator[bytes]:
        """Server-sent events for one page: all there is, then what is new, until the hub is closed.

        Ends early for a page that takes nothing: it connects again, and gets all there is.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_BEHIND)
        async with self._turn:
            if not self._pages:
                await self._look()
            queue.put_nowait(b"retry: 1000\n" + _frame(await asyncio.to_thread(self._runs.whole)))
            self._pages.add(queue)
            if self._task is None and not self._is_closed:
                self._task = asyncio.create_task(self._watch())
        try:
            while not self._is_closed or not queue.empty():
                try:
                    frame = await asyncio.wait_for(queue.get(), _STILL_HERE)
                except TimeoutError:
                    frame = b":\n\n"
                if frame is None:
                    return
                yield frame
        finally:
            self._pages.discard(queue)

    async def close(self, *, is_over: bool) -> None:
        """Send what is new for the last time and end all streams.

        Args:
            is_over: Whether the runs are, so that pages need not connect again.
        """
        async with self._turn:
            self._is_closed = True
            if self._task is not None:
                self._task.cancel()
            if self._pages:
                await self._look()
            for queue in list(self._pages):
                self._put(queue, _END if is_over else None)
                self._put(queue, None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            async with self._turn:
                if not self._pages:
                    self._task = None
                    return
                await self._look()

    async def _look(self) -> None:
        """Send what is new. An error, as of a disk that fails, must not end it: the next look may succeed."""
        try:
            message = await asyncio.to_thread(self._runs.update)
        except Exception as error:
            logger.warning("the runs cannot be read: %s", describe(error))
            return
        if message is not None:
            for queue in list(self._pages):
                self._put(queue, _frame(message))

    def _put(self, queue: "asyncio.Queue[bytes | None]", frame: bytes | None) -> None:
        if queue.full():
            queue.get_nowait()
            queue.put_nowait(None)
            self._pages.discard(queue)
        else:
            queue.put_nowait(frame)


def _frame(message: bytes) -> bytes:
    return b"data: " + message + b"\n\n"
