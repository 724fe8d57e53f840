"""The time of stages on a GPU, which computes behind the program that queues its work."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Measured(Protocol):
    """What a stage took."""

    device_seconds: float


class DeviceClock:
    """Gives the time between marks in a GPU's queue to stages, without waiting for the GPU.

    A mark is an event that the GPU reaches when it has done what was queued before. So work of the program counts as
    far as the GPU had nothing to do meanwhile.

    Args:
        new_event: Makes an event that has a time; CUDA's, unless a test gives its own.
    """

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        self._new_event = new_event or (lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call] # torch gives it no types
        self._pending: deque[tuple[Measured | None, Any]] = deque()

    def mark(self, stage: Measured | None) -> None:
        """Queue a mark; the time since the last one is added to the stage; the first mark only starts the clock."""
        event = self._new_event()
        event.record()
        self._pending.append((stage, event))
        self._settle()

    def finish(self) -> None:
        """Wait for the GPU, so that all marks have their times."""
        if self._pending:
            self._pending[-1][1].synchronize()
        self._settle()

    def _settle(self) -> None:
        """Count what the GPU has reached."""
        while len(self._pending) > 1 and self._pending[1][1].query():
            _, before = self._pending.popleft()
            stage, event = self._pending[0]
            if stage is not None:
                stage.device_seconds += before.elapsed_time(event) / 1e3
