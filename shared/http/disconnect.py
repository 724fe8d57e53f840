"""Stop working for a client that has left."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from shared.http.errors import ApiError

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499  # nginx's number for a client that left before its answer


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, or cancel it as soon as the client closes the connection.

    The request's body must have been read before.

    Raises:
        ApiError: 499, which nobody will read, but the log and the metrics will.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED_REQUEST, "the client closed the connection")
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
