"""Server-Sent Events as an ASGI response: one write a step, comments while it is silent, an end to readers that stall.

The specification: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import structlog
from fastapi import Response
from starlette.types import Receive, Scope, Send

from shared.http import ApiError, error_envelope, error_response, record_error, wait_for_disconnect

_log = structlog.get_logger("ownlm.stream")

PING_SECONDS = 15.0
_ascii_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
DONE = b"data: [DONE]\n\n"
_COMMENT = b": still here\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second one is for nginx


def frame(content: Any) -> bytes:
    """One event. ASCII only: many clients split lines at U+2028, U+2029 and U+0085 too, which the standard does not."""
    data = orjson.dumps(content)
    if not data.isascii():
        data = _ascii_json(content).encode()
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends `frames` as they come, each in one write, and calls `on_end` when they have gone out or the client has.

    The response begins with the first frame, so that what fails before it still has a status of its own, or after
    `PING_SECONDS` with a comment. An `ApiError` after that is a last frame, and the response stays incomplete: the
    server closes the connection, and clients that know nothing of such frames raise all the same.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], *, on_end: Callable[[], None], send_timeout: float) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)
        self._frames = frames
        self._on_end = on_end
        self._send_timeout = send_timeout
        self._begun = False
        self._sending = False
        self._loop = asyncio.get_running_loop()
        self._changed = self._loop.time()  # when sending last began or ended
        self._task: asyncio.Task[Any] | None = None  # what serves, as long as it may be given up
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end, or until the client is gone."""
        self._task = task = asyncio.current_task()
        assert task is not None
        departure = self._loop.create_task(wait_for_disconnect(receive))
        departure.add_done_callback(lambda _: self._give_up())
        self._look(send)
        try:
            await self._send_frames(scope, receive, send)
        except asyncio.CancelledError:
            if self._task is not None or task.uncancel():
                raise  # somebody else's
        finally:
            self._task = None
            for one in (departure, self._timer, self._comment):
                if one is not None:
                    one.cancel()
            self._on_end()

    async def _send_frames(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for part in self._frames:
                await self._send(send, part)
        except ApiError as error:
            if not self._begun:
                self._begun = True
                await error_response(error)(scope, receive, send)
                return
            record_error(error.code, error.status_code)
            await self._send(send, frame(error.envelope()))
        except Exception:
            if not self._begun:
                raise
            _log.exception("stream failed")
            record_error(None, 500)
            await self._send(send, frame(error_envelope(500, "internal error; the server's log has the details")))
        else:
            await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._sending, self._changed = True, self._loop.time()
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending, self._changed = False, self._loop.time()

    def _look(self, send: Send) -> None:
        """Fill long silences; end the stream where a write does not come through. Looks again in time."""
        left = self._changed + (self._send_timeout if self._sending else PING_SECONDS) - self._loop.time()
        if left <= 0:
            if self._sending:
                _log.info("gave up a client that reads nothing")
                self._give_up()
                return
            self._comment = self._loop.create_task(self._send(send, _COMMENT))
            left = self._send_timeout
        self._timer = self._loop.call_later(min(left, self._send_timeout), self._look, send)

    def _give_up(self) -> None:
        """End the stream where it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
