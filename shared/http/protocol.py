"""HTTP/1.1 as uvicorn speaks it, with limits on what a client may send before it is a request."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shared.http.errors import error_envelope
from shared.http.joined_writes import JoinedWrites, UnchunkedWrites

MAX_HEAD_BYTES = 65_536

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class _HeadTooLargeError(Exception):
    """Ends the parsing of a request whose head is over the limit."""


class RequestProtocol(HttpToolsProtocol):
    """Closes connections whose request does not arrive in time, whose head does not end, or whose answer nobody reads.

    A request that comes in one packet, and an answer that fits into the system's buffers, as nearly all do, cost no
    timer. The body's size is the app's to limit.

    Args:
        client_timeout: Seconds from a request's first byte, or a connection's start, to the request's last byte; and
            seconds in which a client that has an answer waiting must take some of it.
        on_refusal: Told the code of each request that is refused here, which the app never sees or sees no end of.
        arguments: uvicorn's own.
    """

    def __init__(
        self,
        *arguments: Any,
        client_timeout: float,
        on_refusal: Callable[[str], None],
        **named_arguments: Any,
    ) -> None:
        super().__init__(*arguments, **named_arguments)
        self._client_timeout = client_timeout
        self._on_refusal = on_refusal
        self._timer: asyncio.TimerHandle | None = None
        self._receiving = False
        self._in_head = True
        self._head_bytes = 0  # of the parsed part of a head and its trailer
        self._bodiless_bytes = 0  # that came since the last part of a body
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._answered: RequestResponseCycle | None = None
        self._lingers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client its time for the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._client_timeout, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_timer()
        self._stop_reader_timer()
        super().connection_lost(exc)
        # uvicorn tells the request that came last; behind it in a pipeline, the one that is being answered would go on.
        _tell_disconnected(self._answered)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and watch over a request that is not complete yet."""
        if self._lingers:
            return
        if not self._receiving:
            if not data.strip(b"\r\n"):
                return  # empty lines between requests, which some clients send, begin none (RFC 9112, 2.2)
            self._receiving = True
            self._stop_timer()
        if self._in_head:
            data = _without_upgrade(data)
        self._bodiless_bytes += len(data)
        super().data_received(data)
        if not self._receiving or self._lingers or self.transport.is_closing():
            return
        if self._timer is None:
            self._timer = self.loop.call_later(self._client_timeout, self._too_slow)
        # A line without an end, in a head or behind a body in chunks, is not parsed before it has one.
        if self._bodiless_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the packet that ended the one before."""
        self._receiving = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a line of the trailer behind a body in chunks."""
        self._count_head(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over; what comes now is the body."""
        if self.parser.should_upgrade() and {b"content-length", b"transfer-encoding"} & {
            name for name, _ in self.headers
        }:
            raise ValueError("the parser would take the body for another request")  # answered with 400
        self._in_head = False
        super().on_headers_complete()
        if self._answered is None or self._answered.response_complete:
            self._answered = self.cycle
        if self.cycle is not None:
            writes = JoinedWrites if self.parser.get_http_version() != "1.0" else UnchunkedWrites
            self.cycle.transport = cast("asyncio.Transport", writes(self.transport, self.loop, self._hang_up))

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._bodiless_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete, and its time no longer runs."""
        self._receiving = False
        self._in_head = True
        self._bodiless_bytes = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next request of a pipeline has its turn."""
        if self._lingers:
            return
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()

    def pause_writing(self) -> None:
        """More of an answer waits than the client takes: watch whether it takes any."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It has taken nearly all."""
        super().resume_writing()
        self._stop_reader_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one whose answer was never taken would wait for its reader while it closes."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """The service ends: wait for no client that was answered."""
        if self._lingers:
            self.transport.close()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too large a head."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        self._refuse(400, f"this is no HTTP/1.1 request ({msg.rstrip('.')})", "invalid_http")

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        # It is us who do not read, or the client may wait for an answer before it goes on.
        if self.flow.read_paused or self._is_answering():
            self._timer = self.loop.call_later(self._client_timeout, self._too_slow)
        elif not self._receiving:  # it never sent anything, and would not expect an answer
            self.transport.close()
        else:
            message = f"the request did not arrive within {self._client_timeout:g} s (OWNLM_CLIENT_TIMEOUT)"
            self._refuse(408, message, "request_timeout")

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self._client_timeout, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reader()
        else:
            self.logger.info("gave up a client that takes nothing of its answer")
            self.transport.abort()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLargeError  # the parser gives up, and `send_400_response` is called

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's headers are over {MAX_HEAD_BYTES:,} bytes", "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer, unless an answer is going out already, and hang up."""
        self._stop_timer()
        if self._is_answer_due():
            body = orjson.dumps(error_envelope(status, message, code=code))
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
            self._on_refusal(code)
            self._linger()
        else:
            self.transport.close()
        self.logger.info("refused a connection: %s", message)

    def _is_answering(self) -> bool:
        """Whether a request that came whole waits for the end of its answer."""
        answered = self._answered
        return answered is not None and not answered.more_body and not answered.response_complete

    def _is_answer_due(self) -> bool:
        answered = self._answered  # behind it in a pipeline may be others, whose answers have not begun
        if answered is None or not answered.response_started:
            return True
        # That of the request before, or already that of this one, whose body the app did not wait for.
        return self._in_head and answered.response_complete

    def _hang_up(self) -> None:
        """Close behind an answer, the last one of this connection."""
        if not self.transport.is_closing() and (self._receiving or self.pipeline):
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Send no more, but take what the client still sends, until it closes or its time is over.

        A system that closes while something is unread resets the connection, and the client may lose the answer that
        says why (RFC 9112, 9.6).
        """
        self._lingers = True
        _tell_disconnected(self._answered)
        _tell_disconnected(self.cycle)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_timer()
        unread_bytes = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._client_timeout, self._end_lingering, unread_bytes)

    def _end_lingering(self, unread_before: int) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < unread_before:  # it still takes its answer
            self._timer = self.loop.call_later(self._client_timeout, self._end_lingering, unread_bytes)
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


def _tell_disconnected(cycle: RequestResponseCycle | None) -> None:
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _without_upgrade(data: bytes) -> bytes:
    """Hide from the parser that a client would like another protocol.

    None is offered, so the wish may be ignored (RFC 9110, 7.8). httptools drops the body of a request that has it, as
    those of Java's HttpClient and of `curl --http2` have.
    """
    end = data.find(b"\r\n\r\n")
    if not _UPGRADE.search(data, 0, end if end >= 0 else len(data)):
        return data
    head, rest = (data[:end], data[end:]) if end >= 0 else (data, b"")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + rest
