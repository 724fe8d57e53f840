"""Server-Sent Events as an ASGI response: one write a step, comments while it is silent, an end to readers that stall.

The specification: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import orjson
import structlog
from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from shared.http import ApiError, error_envelope, note_error

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
    `PING_SECONDS` with a comment. An `ApiError` after that is a last frame.
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
        self._now = asyncio.get_running_loop().time
        self._changed = self._now()  # when sending last began or ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end, or until the client is gone."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                group.start_soon(self._keep_alive, send, group.cancel_scope)
                await self._send_frames(scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            self._on_end()

    async def _send_frames(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for part in self._frames:
                await self._send(send, part)
        except ApiError as error:
            note_error(error.code)
            if not self._begun:
                self._begun = True
                await JSONResponse(error.envelope(), error.status_code, error.headers)(scope, receive, send)
                return
            await self._send(send, frame(error.envelope()))
        except Exception:
            if not self._begun:
                raise
            _log.exception("stream failed")
            await self._send(send, frame(error_envelope(500, "internal error; the server's log has the details")))
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._sending, self._changed = True, self._now()
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._sending, self._changed = False, self._now()

    async def _keep_alive(self, send: Send, scope: anyio.CancelScope) -> None:
        """Fill long silences; end the stream where a write does not come through."""
        while True:
            limit = self._send_timeout if self._sending else PING_SECONDS
            left = self._changed + limit - self._now()
            if left > 0:
                await asyncio.sleep(min(left, self._send_timeout))
                continue
            if not self._sending:
                with anyio.move_on_after(self._send_timeout):
                    await self._send(send, _COMMENT)
                    continue
            _log.info("gave up a client that reads nothing")
            scope.cancel()
            return


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
