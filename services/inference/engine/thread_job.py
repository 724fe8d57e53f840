"""A job whose events come from another thread: for the loop that runs in this process, until that goes."""

import asyncio
from typing import TYPE_CHECKING

from services.inference.engine.job import Job

if TYPE_CHECKING:
    from services.inference.engine.request import EngineError, RowEvent


class ThreadJob(Job):
    """The engine's thread asks `wants` and calls `post`; an error among the events ends the job."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows, lambda _number, _row: None)
        self._loop = asyncio.get_running_loop()

    def wants(self, row: int) -> bool:
        """Whether the engine should go on with this row."""
        return row in self._unfinished and self._error is None

    def post(self, event: "RowEvent | EngineError") -> None:
        """Hand over an event from another thread."""
        try:
            self._loop.call_soon_threadsafe(self._receive, event)
        except RuntimeError:
            self._unfinished.clear()  # the event loop is closed: nobody is left to read

    def _receive(self, event: "RowEvent | EngineError") -> None:
        if isinstance(event, Exception):
            self.fail(event)
        else:
            self.receive(event)
