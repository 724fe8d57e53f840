"""uvicorn's HTTP/1.1 protocol, with limits on the size and the time of requests and responses.

All hooks into uvicorn's private connection class are in this file. The parser gets each byte as the client sent it; a
request that httptools cannot parse as RFC 9112 requires is refused. The app sends the refusals, so that they have the
same headers, log line and metrics as any other response.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.http.errors import SERVER_REFUSAL, ApiError
from shared.http.server.connection import ReaderTimeout, ResponseTransport, Timeout, UnchunkedTransport
from shared.http.server.file_descriptors import is_reserved

MAX_HEAD_BYTES = 65_536
# Bytes parsed at once outside of bodies of known length. Each request among them takes a few kilobytes of memory.
_PARSED_BYTES = 512
_NOTHING = memoryview(b"")  # an empty part of a packet would hold the packet


class RequestProtocol(HttpToolsProtocol):
    """Closes connections whose request is not received in time, whose head is too large, or whose response is not read.

    A request in one packet and a response that fits into the system's buffers need no timer. Pipelined requests wait
    unparsed, except for a few, until the response before them is complete, and the connection is not read meanwhile.
    The app limits the size of bodies.

    Args:
        client_timeout: Seconds from a request's first byte, or a connection's start, to the request's last byte; also
            the seconds within which a client must read some of a response that waits for it.
        arguments: uvicorn's own.
    """

    def __init__(self, *arguments: Any, client_timeout: float, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self._client_timeout = client_timeout
        self._timer = Timeout(self.loop, client_timeout, self._too_slow)
        self._unparsed = _NOTHING
        self._receiving = False  # from a request's first byte to its last
        self._in_head = True
        self._head_bytes = 0  # of a head or trailer, or between two chunks
        self._body_left = 0  # of a body whose length was announced
        self._answered: RequestResponseCycle | None = None  # the oldest request without a complete response
        self._input_ended = False  # what the client still sends is discarded
        self._lingers = False
        self._service_ends = False

    @property
    def has_unparsed(self) -> bool:
        """Whether bytes wait for the response to the request before them."""
        return bool(self._unparsed)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, unless file descriptors run out."""
        super().connection_made(transport)
        if is_reserved(transport.get_extra_info("socket")):
            transport.abort()
        self.flow = self._flow = _Flow(transport, self)
        self._responses = ResponseTransport(transport, self._hang_up)
        self._reader = ReaderTimeout(self.loop, self._client_timeout, self._on_stalled_reader, transport)
        self._timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and notify every request without a complete response."""
        self._end_input()
        self._reader.stop()
        self._unset_keepalive_if_required()  # uvicorn leaves it running after a reset, and it refers to the connection
        super().connection_lost(exc)
        _disconnect(self._answered)  # uvicorn notifies only the newest request of a pipeline
        # A request refers to its connection: the rest of its body would wait for the garbage collector.
        self.cycle = self._answered = None  # type: ignore[assignment]
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what was received, and start the timer of an incomplete request."""
        if self._input_ended:
            return
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()

    def on_message_begin(self) -> None:
        """A request begins, perhaps in the packet that ended the previous one."""
        self._receiving = True
        self._timer.stop()
        self._unset_keepalive_if_required()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete; the body follows."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(ApiError(505, f"HTTP/{version} is not supported, use HTTP/1.1", code="http_version"))
            return
        headers = dict(self.headers)
        length = int(headers.get(b"content-length", 0))
        if (length or b"transfer-encoding" in headers) and self.parser.should_upgrade():
            # httptools would treat the body as bytes of the other protocol.
            message = "the request has a body and asks for another protocol, but this server supports only HTTP/1.1"
            ways = "leave out 'Connection: Upgrade' (curl: --http1.1; Java: HttpClient.Version.HTTP_1_1)"
            self._refuse(ApiError(400, f"{message}: {ways}", code="upgrade_not_supported"))
            return
        self._begin_answer()
        # Trailers are ignored (RFC 9110, 6.5.1): they must not authorize a request or describe its body.
        self.headers = []
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
        """The request is complete: stop its timer."""
        self._receiving = False
        self._in_head = True
        self._head_bytes = 0
        self._timer.stop()
        if not self._input_ended:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the next request of a pipeline."""
        if self._lingers:
            return
        self._responses.end_response()
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._timer.is_running:  # the next request was not read meanwhile: its timer starts now
            self._timer.start()
        if self._unparsed and not self.pipeline:
            self.loop.call_soon(self._parse)

    def pause_writing(self) -> None:
        """The client reads more slowly than the response is written: watch whether it reads at all."""
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        """The client has read nearly all of it."""
        super().resume_writing()
        if not self._lingers:
            self._reader.stop()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, or abort it if its response was not read: closing would wait for the reader."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """The service shuts down: do not wait for clients that have their responses."""
        self._service_ends = True
        if self._lingers:
            self.transport.close()
        super().shutdown()

    def _parse(self) -> None:
        """Parse until a request has to wait for the response to the previous one."""
        while self._unparsed and not self._input_ended and not self.pipeline and not self.transport.is_closing():
            size = self._body_left or min(_PARSED_BYTES, MAX_HEAD_BYTES - self._head_bytes)
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._head_bytes += len(part)
            self._feed(part)
        if self._unparsed:
            self.flow.pause_reading()
        else:
            self._unparsed = _NOTHING
            if self._flow.owes_resume:
                self._flow.resume_reading()
        if self._receiving and not self._input_ended and not self._timer.is_running:
            self._timer.start()

    def _feed(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # RFC 9110, 7.8: a server may ignore the upgrade. After a request without a body comes the next request.
            if not self._input_ended:
                self._unparsed = memoryview(bytes(data[upgrade.args[0] :]) + bytes(self._unparsed))
        except httptools.HttpParserError as error:
            self._refuse_invalid(error)
        if self._head_bytes >= MAX_HEAD_BYTES and not self._input_ended:
            message = f"the request's headers have more than {MAX_HEAD_BYTES:,} bytes"
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def _refuse_invalid(self, error: httptools.HttpParserError) -> None:
        if self.cycle is not None and not self._receiving and not self.cycle.keep_alive:
            self._end_input()  # bytes after the last request of this connection
        elif not self._input_ended:
            is_callback_error = isinstance(error, httptools.HttpParserCallbackError)
            reason = "the request target is invalid" if is_callback_error else str(error).rstrip(".")
            self._refuse(ApiError(400, f"not a valid HTTP/1.1 request: {reason}", code="invalid_http"))

    def _begin_answer(self) -> None:
        """Pass the request to the app, or queue it."""
        super().on_headers_complete()
        cycle = self.cycle
        if self._answered is None or self._answered.response_complete:
            self._answered = cycle
        cycle.transport = cast("asyncio.Transport", self._responses)
        if self.scope["http_version"] == "1.0":
            cycle.transport = cast("asyncio.Transport", UnchunkedTransport(self.transport, self._hang_up))
            cycle.waiting_for_100_continue = False  # RFC 9110, 10.1.1

    def _refuse(self, error: ApiError) -> None:
        """Respond with `error` after the responses to previous requests, and close the connection.

        If the response to this request has already begun, only close the connection.
        """
        self._end_input()
        self.logger.info("refused a request: %s", error.detail)
        if self._in_head:
            if not self._receiving:
                self.on_message_begin()
            has_request_line = bool(self.url)
            self.url = b"/"
            self._begin_answer()
            if not has_request_line:  # the parser has the method of the previous request
                self.scope["method"] = "-"
        cycle = self.cycle
        assert cycle is not None
        if cycle.response_started:
            if cycle.response_complete:
                self._hang_up()
            else:
                _disconnect(self._answered, cycle)
                self.transport.close()
            return
        cycle.scope["extensions"] = {SERVER_REFUSAL: {"error": error}}
        cycle.keep_alive = False
        cycle.more_body = False
        cycle.message_event.set()

    def _end_input(self) -> None:
        self._timer.stop()
        self._input_ended = True
        self._unparsed = _NOTHING

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        # The server does not read now, or the client may wait for a response before it continues.
        if self.flow.read_paused or self._is_answering():
            self._timer.start()
        elif not self._receiving:  # it has sent nothing, and would not expect a response
            self.transport.close()
        else:
            message = f"the request was not received within {self._client_timeout:g} s (OWNLM_CLIENT_TIMEOUT)"
            self._refuse(ApiError(408, message, code="client_timeout"))

    def _is_answering(self) -> bool:
        """Whether a complete request waits for the end of its response."""
        answered = self._answered
        return answered is not None and not answered.more_body and not answered.response_complete

    def _on_stalled_reader(self) -> None:
        if not self._lingers:
            self.logger.info("closed a connection whose client does not read the response")
        self.transport.abort()

    def _hang_up(self) -> None:
        """Close after the last response of this connection."""
        if self._service_ends:
            self.transport.close()
        elif not self.transport.is_closing():
            self._linger()

    def _linger(self) -> None:
        """Send no more, but read and discard what the client still sends, until it closes or the timeout is over.

        Closing a socket with unread data resets the connection, and the client may lose the response (RFC 9112, 9.6).
        """
        self._lingers = True
        self._end_input()
        _disconnect(self.cycle)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._reader.start()


class _Flow(FlowControl):
    """uvicorn's flow control, which resumes reading at each `receive`, but not while bytes are unparsed."""

    def __init__(self, transport: asyncio.Transport, protocol: RequestProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol
        self.owes_resume = False

    def resume_reading(self) -> None:
        """Resume reading, or note that this is due when no bytes are unparsed."""
        if self.read_paused:
            self.owes_resume = self._protocol.has_unparsed
            if not self.owes_resume:
                super().resume_reading()


def _disconnect(*cycles: RequestResponseCycle | None) -> None:
    for cycle in cycles:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
