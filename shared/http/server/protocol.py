"""HTTP/1.1 as uvicorn and httptools read it, with limits on what a client may send, and how slowly.

All hooks into uvicorn's connection class are in this file. The parser sees each byte as the client sent it; a request
that httptools cannot read as RFC 9112 says is refused. Refusals are answered by the app, so that they have the same
headers, log line and metrics as any other answer.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.http.errors import SERVER_REFUSAL, ApiError
from shared.http.server.response_transport import ResponseTransport, UnchunkedTransport, unacknowledged_bytes

MAX_HEAD_BYTES = 65_536
# What is parsed at once outside bodies of a known length. Each of the requests in it takes a few kilobytes.
_PARSED_BYTES = 512
_NOTHING = memoryview(b"")  # an empty part of a packet would hold the packet


class RequestProtocol(HttpToolsProtocol):
    """Closes connections whose request does not arrive in time, whose head does not end, or whose answer is not read.

    A request that arrives in one packet, and an answer that fits into the system's buffers, cost no timer. Requests
    behind the one that is being answered wait unparsed but for a few, and the connection is not read meanwhile. The
    body's size is limited by the app.

    Args:
        client_timeout: Seconds from a request's first byte, or a connection's start, to the request's last byte; and
            seconds in which a client that has an answer waiting must take some of it.
        arguments: uvicorn's own.
    """

    def __init__(self, *arguments: Any, client_timeout: float, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self._client_timeout = client_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unparsed = _NOTHING
        self._receiving = False  # from a request's first byte to its last one
        self._in_head = True
        self._head_bytes = 0  # of a head or trailer, or between two chunks
        self._body_left = 0  # of a body whose length was announced
        self._answered: RequestResponseCycle | None = None  # the oldest request without a whole answer
        self._input_ended = False  # what the client still sends is dropped
        self._lingers = False
        self._service_ends = False

    @property
    def has_unparsed(self) -> bool:
        """Whether bytes wait for the answer to the request before them."""
        return bool(self._unparsed)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client its time for the first request."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport, self)
        self._timer = self.loop.call_later(self._client_timeout, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and let every request without a whole answer know."""
        self._end_input()
        self._stop_reader_timer()
        self._unset_keepalive_if_required()  # uvicorn leaves it, and with it all this, after a reset
        super().connection_lost(exc)
        _disconnect(self._answered)  # uvicorn knows the newest request of a pipeline only
        # A request knows its connection: what is left of its body would wait for the collector.
        self.cycle = self._answered = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and watch over a request that is not complete yet."""
        if self._input_ended:
            return
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the packet that ended the one before."""
        self._receiving = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Those of a trailer are left out (RFC 9110, 6.5.1): they must not authorize or describe a body."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is over; what follows is the body."""
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            self._refuse(ApiError(505, f"HTTP/{version} is not spoken here, use HTTP/1.1", code="http_version"))
            return
        headers = dict(self.headers)
        length = int(headers.get(b"content-length", 0))
        if (length or b"transfer-encoding" in headers) and self.parser.should_upgrade():
            # httptools would take the body for bytes of the other protocol.
            message = "the request has a body and asks for another protocol, and this server speaks HTTP/1.1 only"
            ways = "leave out 'Connection: Upgrade' (curl: --http1.1; Java: HttpClient.Version.HTTP_1_1)"
            self._refuse(ApiError(400, f"{message}: {ways}", code="upgrade_not_supported"))
            return
        self._begin_answer()
        self._in_head = False
        self._head_bytes = 0
        self._body_left = length

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._head_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        if not self._input_ended:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete, and its time no longer runs."""
        self._receiving = False
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        if not self._input_ended:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next request of a pipeline has its turn."""
        if self._lingers:
            return
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._timer is not None:  # the next request was not read meanwhile: its time begins now
            self._stop_timer()
            self._start_timer()
        if self._unparsed and not self.pipeline:
            self.loop.call_soon(self._parse)

    def pause_writing(self) -> None:
        """More of an answer waits than the client takes: watch whether it takes any."""
        super().pause_writing()
        self._watch_reader(self._untaken_bytes())

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
        self._service_ends = True
        if self._lingers:
            self.transport.close()
        super().shutdown()

    def _parse(self) -> None:
        """Parse until a request has to wait for the answer to the one before it."""
        while self._unparsed and not self._input_ended and not self.pipeline and not self.transport.is_closing():
            size = self._body_left or min(_PARSED_BYTES, MAX_HEAD_BYTES - self._head_bytes)
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._head_bytes += len(part)
            self._feed(part)
        if self._unparsed:
            self.flow.pause_reading()
        else:
            self._unparsed = _NOTHING
            self._flow.resume_if_owed()
        if self._receiving and not self._input_ended and self._timer is None:
            self._start_timer()

    def _feed(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            # RFC 9110, 7.8: a server may ignore it. What follows a request without a body is the next request.
            if not self._input_ended:
                self._unparsed = memoryview(bytes(data[wish.args[0] :]) + bytes(self._unparsed))
        except httptools.HttpParserError as error:
            self._refuse_invalid(error)
        if self._head_bytes >= MAX_HEAD_BYTES and not self._input_ended:
            message = f"the request's headers are over {MAX_HEAD_BYTES:,} bytes"
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def _refuse_invalid(self, error: httptools.HttpParserError) -> None:
        if self.cycle is not None and not self._receiving and not self.cycle.keep_alive:
            self._end_input()  # bytes behind the last request of this connection
        elif not self._input_ended:
            is_ours = isinstance(error, httptools.HttpParserCallbackError)
            reason = "the request target cannot be read" if is_ours else str(error).rstrip(".")
            self._refuse(ApiError(400, f"not a valid HTTP/1.1 request: {reason}", code="invalid_http"))

    def _begin_answer(self) -> None:
        """Give the request to the app, or let it wait for its turn."""
        version = self.parser.get_http_version()
        self.expect_100_continue = self.expect_100_continue and version != "1.0"  # RFC 9110, 10.1.1
        super().on_headers_complete()
        if self._answered is None or self._answered.response_complete:
            self._answered = self.cycle
        assert self.cycle is not None
        kind = UnchunkedTransport if version == "1.0" else ResponseTransport
        self.cycle.transport = cast("asyncio.Transport", kind(self.transport, self.loop, self._hang_up))

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error`, when the requests before have been answered, and hang up.

        Where the request has begun to be answered already, nothing can be said any more.
        """
        self._end_input()
        self.logger.info("refused a request: %s", error.detail)
        if self._in_head:
            if not self._receiving:
                self.on_message_begin()
            has_request_line = bool(self.url)
            self.url = b"/"
            self._begin_answer()
            if not has_request_line:  # the parser has the method of the request before
                self.scope["method"] = "-"
        cycle = self.cycle
        assert cycle is not None
        if cycle.response_started:
            self._hang_up() if cycle.response_complete else self._disconnect_all()
            return
        cycle.scope["extensions"] = {SERVER_REFUSAL: {"error": error}}
        cycle.keep_alive = False
        cycle.more_body = False
        cycle.message_event.set()

    def _end_input(self) -> None:
        self._stop_timer()
        self._input_ended = True
        self._unparsed = _NOTHING

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        # It is us who do not read, or the client may wait for an answer before it goes on.
        if self.flow.read_paused or self._is_answering():
            self._start_timer()
        elif not self._receiving:  # it never sent anything, and would not expect an answer
            self.transport.close()
        else:
            message = f"the request did not arrive within {self._client_timeout:g} s (OWNLM_CLIENT_TIMEOUT)"
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _is_answering(self) -> bool:
        """Whether a request that arrived whole waits for the end of its answer."""
        answered = self._answered
        return answered is not None and not answered.more_body and not answered.response_complete

    def _untaken_bytes(self) -> int:
        """What was written and has not arrived: a slow client's buffers hide its progress from the event loop."""
        return self.transport.get_write_buffer_size() + unacknowledged_bytes(self.transport)

    def _watch_reader(self, untaken: int) -> None:
        self._stop_reader_timer()
        self._reader_timer = self.loop.call_later(self._client_timeout, self._check_reader, untaken)

    def _check_reader(self, untaken_before: int) -> None:
        if (untaken := self._untaken_bytes()) < untaken_before:
            self._watch_reader(untaken)
        else:
            self.logger.info("closed a connection whose client reads nothing of its answer")
            self.transport.abort()

    def _hang_up(self) -> None:
        """Close after an answer, the last one of this connection."""
        if self._service_ends:
            self.transport.close()
        elif not self.transport.is_closing():
            self._linger()

    def _disconnect_all(self) -> None:
        _disconnect(self._answered)
        _disconnect(self.cycle)
        self.transport.close()

    def _linger(self) -> None:
        """Send no more, but take what the client still sends, until it closes or its time is over.

        A system that closes while something is unread resets the connection, and the client may lose the answer that
        says why (RFC 9112, 9.6).
        """
        self._lingers = True
        self._end_input()
        _disconnect(self.cycle)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self._client_timeout, self._end_lingering, self._untaken_bytes())

    def _end_lingering(self, untaken_before: int) -> None:
        if (untaken := self._untaken_bytes()) < untaken_before:  # it still takes its answer
            self._timer = self.loop.call_later(self._client_timeout, self._end_lingering, untaken)
        else:
            self.transport.abort()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._client_timeout, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


class _Flow(FlowControl):
    """uvicorn's, but what waits unparsed is not added to: uvicorn reads on with each answer and each `receive`."""

    def __init__(self, transport: asyncio.Transport, protocol: RequestProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol
        self._owes_resume = False

    def resume_reading(self) -> None:
        """Read on, as soon as no bytes wait."""
        self._owes_resume = True
        self.resume_if_owed()

    def resume_if_owed(self) -> None:
        """Do what was asked for while bytes waited."""
        if self._owes_resume and not self._protocol.has_unparsed:
            self._owes_resume = False
            super().resume_reading()


def _disconnect(cycle: RequestResponseCycle | None) -> None:
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()
