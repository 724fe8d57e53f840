"""Read large JSON bodies so that probes and other requests need not wait for them."""

import codecs
import json
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from shared.http.errors import ApiError, shorten

# Up to this size JSON is read at once: a few tenths of a millisecond, less than a thread costs under load.
_INLINE_BYTES = 1 << 16
# Strings, and lists and objects, of a large body. A parser makes them at a few million a second, and nothing else of
# this process runs meanwhile, in whatever thread it is: they are counted before. Twice what any request of ours needs.
_MAX_PARTS = 1 << 17
# Between numbers mostly, which take 10 to 80 ns each. Of token ids, more than a megabyte of text; raw bytes take more.
_MAX_COMMAS = 1 << 21


class JsonRoute(APIRoute):
    """A route whose JSON body is read in a worker thread where it is large, by a faster parser.

    Of a large body, integers beyond 64 bits are read as floating-point numbers, which no field for integers takes.
    `build_app` makes it the class of all routes; a router of its own needs `APIRouter(route_class=JsonRoute)`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler, with a request that reads JSON our way."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


def refuse_coded_body(headers: Headers) -> None:
    """Refuse a compressed body by what its header says, not by what its bytes look like as JSON, text or ids.

    Raises:
        ApiError: 415.
    """
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() not in {"", "identity"}:
        message = f"send the body as it is, without Content-Encoding (got {shorten(coding)})"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})


class _JsonRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            refuse_coded_body(self.headers)
            body = await self.body()
            if len(body) <= _INLINE_BYTES:
                self._json = json.loads(body)
            else:
                self._json = await anyio.to_thread.run_sync(_parse, body)
        return self._json


def _parse(body: bytes) -> Any:
    _check_parts(body)
    return orjson.loads(body.removeprefix(codecs.BOM_UTF8))  # as of a small body; some Windows programs write it


def _check_parts(body: bytes) -> None:
    """Refuse what has too many parts, with steps that take a few milliseconds each for several megabytes."""
    if _containers(body) <= _MAX_PARTS and body.count(b'"') <= 2 * _MAX_PARTS and body.count(b",") <= _MAX_COMMAS:
        return
    # Some of these may lie within strings. Without the escapes, strings are what lies between two quotes.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > _MAX_PARTS:
        raise _too_many(strings, "strings", _MAX_PARTS)
    outside = b"".join(plain.split(b'"')[::2])
    if (containers := _containers(outside)) > _MAX_PARTS:
        raise _too_many(containers, "lists and objects", _MAX_PARTS)
    if (commas := outside.count(b",")) > _MAX_COMMAS:
        raise _too_many(commas, "commas between values", _MAX_COMMAS)


def _containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _too_many(count: int, parts: str, limit: int) -> ApiError:
    return ApiError(422, f"the body has {count:,} {parts}, the limit is {limit:,}: send several requests")
