"""Run work that keeps a core busy away from the event loop."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio.to_thread

P = ParamSpec("P")
R = TypeVar("R")


class CpuWorkers:
    """At most `limit` threads at a time; further calls wait their turn without blocking the event loop."""

    def __init__(self, limit: int) -> None:
        self._limiter = anyio.CapacityLimiter(limit)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a worker thread and wait for its result."""
        return await anyio.to_thread.run_sync(functools.partial(function, *args, **kwargs), limiter=self._limiter)
