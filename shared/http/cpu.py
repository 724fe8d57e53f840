"""Run work that keeps a core busy, or blocks, away from the event loop."""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.to_thread

from shared.http.errors import ApiError
from shared.system.errors import describe, is_no_thread

P = ParamSpec("P")
R = TypeVar("R")


class CpuWorkers:
    """At most `limit` threads at a time; further calls wait their turn without blocking the event loop."""

    def __init__(self, limit: int) -> None:
        self._limiter = anyio.CapacityLimiter(limit)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a worker thread and wait for its result; raises as `in_thread` does."""
        return await in_thread(partial(function, *args, **kwargs), limiter=self._limiter)


async def in_thread(function: Callable[[], R], *, limiter: anyio.CapacityLimiter | None = None) -> R:
    """Call `function` in a worker thread and wait for its result.

    Raises:
        ApiError: 503, where Python finds no room for another thread.
    """
    try:
        return await anyio.to_thread.run_sync(function, limiter=limiter)
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise ApiError(503, describe(error), code="no_thread", headers={"Retry-After": "1"}) from None
