"""Server-Sent Events as an ASGI response, with comments while no event comes.

The specification: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import structlog
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from shared.http import ApiError, cancel_on_disconnect, error_envelope, error_response, record_error

_log = structlog.get_logger("ownlm.stream")

PING_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
_PING = b": still here\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second one is for nginx
_INTERNAL_ERROR = error_envelope(500, "internal error; the server's log has the details")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")  # within strings only: the rest of JSON is ASCII


def encode_event(content: Any) -> bytes:
    """One event. ASCII only: many clients split lines at U+2028, U+2029 and U+0085 too, which the standard does not."""
    data = orjson.dumps(content)
    if not data.isascii():
        data = _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], data.decode()).encode()
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends `events` as they come, each item in one write; calls `on_end` when all are sent or the client disconnects.

    The response starts with the first event, so that an earlier failure has its own status, or with a comment after
    `PING_SECONDS`. A later failure is sent as a last event and the response stays incomplete: the server closes the
    connection, and clients that do not know such events raise all the same.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)
        self._events = events
        self._on_end = on_end
        self._started = False
        self._sending = False
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends or the client disconnects.

        Raises:
            ApiError: 499, the client disconnected before the response started.
        """
        self._watch_silence(send)
        try:
            await cancel_on_disconnect(Request(scope, receive), self._send_events(scope, receive, send))
        except ApiError:
            if not self._started:
                raise
        finally:
            for pending in (self._ping_timer, self._ping):
                if pending is not None:
                    pending.cancel()
            self._on_end()

    async def _send_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for part in self._events:
                await self._send(send, part)
        except ApiError as error:
            if not self._started:
                self._started = True
                await error_response(error)(scope, receive, send)
                return
            record_error(error.code, error.status_code)
            await self._send(send, encode_event(error.envelope()))
        except Exception:
            if not self._started:
                raise
            _log.exception("stream failed")
            record_error(None, 500)
            await self._send(send, encode_event(_INTERNAL_ERROR))
        else:
            await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._sending = True
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending = False
        self._last_sent = self._loop.time()

    def _watch_silence(self, send: Send) -> None:
        """Send a comment after each `PING_SECONDS` of silence, so that no proxy closes the connection."""
        remaining = self._last_sent + PING_SECONDS - self._loop.time()
        if remaining <= 0:
            remaining = PING_SECONDS
            if not self._sending:  # else the client is slow, and the server closes the connection if it stalls
                self._ping = self._loop.create_task(self._send(send, _PING))
        self._ping_timer = self._loop.call_later(remaining, self._watch_silence, send)
