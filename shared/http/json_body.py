"""Read large JSON bodies away from the event loop, so that probes and other requests need not wait for them."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

# Up to this size JSON is read at once: a few tenths of a millisecond, less than a thread costs under load.
_INLINE_BYTES = 1 << 16


class JsonRoute(APIRoute):
    """A route whose JSON body is read in a worker thread where it is large; nothing else differs.

    `build_app` makes it the class of all routes; a router of its own needs `APIRouter(route_class=JsonRoute)`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler, with a request that reads JSON our way."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) <= _INLINE_BYTES:
                self._json = json.loads(body)
            else:
                self._json = await anyio.to_thread.run_sync(orjson.loads, body)
        return self._json
