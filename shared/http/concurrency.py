"""Threads for work that keeps a core busy, and an end to work whose client has disconnected."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
from starlette.requests import Request
from starlette.types import Receive

from shared.http.errors import CLIENT_CLOSED_REQUEST, ApiError
from shared.system.errors import describe, is_no_thread

P = ParamSpec("P")
R = TypeVar("R")


class ThreadPool:
    """At most `limit` threads at a time; further calls wait their turn without blocking the event loop."""

    def __init__(self, limit: int) -> None:
        self._limiter = anyio.CapacityLimiter(limit)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread and wait for its result; raises as `in_thread` does."""
        return await in_thread(partial(function, *args, **kwargs), limiter=self._limiter)


async def in_thread(function: Callable[[], R], *, limiter: anyio.CapacityLimiter | None = None) -> R:
    """Call `function` in a thread and wait for its result.

    Raises:
        ApiError: 503, where Python cannot start another thread.
    """
    try:
        return await anyio.to_thread.run_sync(function, limiter=limiter)
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise ApiError(503, describe(error), code="no_thread", headers={"Retry-After": "1"}) from None


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """Run `work` to its end, or cancel it as soon as the client closes the connection.

    The request's body must have been read before.

    Raises:
        ApiError: 499, which no client receives, but the log line and the metrics report it.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client closed the connection")
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection or has its whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
