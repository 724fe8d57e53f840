"""What a client sends before it is a request: slow, endless or nonsense. Real sockets, since the client misbehaves."""

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from structlog.testing import capture_logs

from shared.http.server.protocol import MAX_HEAD_BYTES
from tests.shared.http.connection import Transport, answers, protocol_of, statuses

TIMEOUT = 1.0  # of clients that are to run into it
PATIENCE = 240  # for what must happen
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def app(build: Any) -> FastAPI:
    app: FastAPI = build()

    @app.get("/endless")
    async def write_on() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"line\n"
                await asyncio.sleep(0.001)

        return StreamingResponse(lines())

    @app.get("/large")
    async def write_much() -> PlainTextResponse:
        return PlainTextResponse(b"x" * 20_000_000)

    return app


@pytest.fixture
def address(app: FastAPI, serve: Any) -> Any:
    return serve(app)


@pytest.fixture
def hasty(app: FastAPI, serve: Any) -> Any:
    return serve(app, client_timeout=TIMEOUT)


@pytest.fixture
def open_connections() -> Iterator[list[socket.socket]]:
    """Stay open until the server has ended, if they are asked for before it."""
    connections: list[socket.socket] = []
    yield connections
    for connection in connections:
        connection.close()


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    answer = b""
    while data := connection.recv(65536):
        answer += data
    return answer


def error_of(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return json.loads(body)["error"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def refusals(address: tuple[str, int], reason: str) -> float:
    page = httpx.get(f"http://{address[0]}:{address[1]}/metrics").text.splitlines()
    name = f'ownlm_refused_requests_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(name)) for line in page if line.startswith(name))


def test_a_request_that_does_not_arrive_is_told_408(hasty: tuple[str, int]) -> None:
    parts = [
        b"POST /ec",
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li",
    ]
    with ExitStack() as stack:
        connections = []
        for part in parts:
            connections.append(stack.enter_context(connect(hasty)))
            connections[-1].sendall(part)
        answers = [read_all(connection) for connection in connections]
    for part, answer in zip(parts, answers, strict=True):
        last = answer[answer.rindex(b"HTTP/1.1 ") :]
        assert last.startswith(b"HTTP/1.1 408 "), part
        assert error_of(last)["message"] == "the request was not received within 1 s (OWNLM_CLIENT_TIMEOUT)"
    assert refusals(hasty, "client_timeout") == len(parts)


def test_a_request_that_was_answered_before_its_end_is_not_answered_again(hasty: tuple[str, int]) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert refusals(hasty, "client_timeout") == 0


def test_a_drip_does_not_keep_a_connection_open(hasty: tuple[str, int]) -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(int(PATIENCE / 0.02)):
            connection.sendall(b" ")
            time.sleep(0.02)

    with connect(hasty) as connection:
        connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        with pytest.raises(ConnectionError):
            drip(connection)


def test_what_is_sent_behind_a_refusal_does_not_take_the_refusal_away(build: Any, serve: Any) -> None:
    """A close with unread data resets the connection, and the client's system forgets what it has not read yet."""
    with connect(serve(build())) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        connection.recv(1, socket.MSG_PEEK)  # it has been refused
        for _ in range(100):
            connection.sendall(b"x" * 65_536)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_a_client_that_was_refused_does_not_hold_up_the_end(
    open_connections: list[socket.socket], build: Any, serve: Any
) -> None:
    address = serve(build(), client_timeout=3600)
    for sent, status in ((b"nonsense\r\n\r\n", 400), (HEAD + b"Content-Length: 99999999\r\n\r\n{", 413)):
        connection = connect(address)
        open_connections.append(connection)
        connection.sendall(sent)
        assert read_all(connection).startswith(b"HTTP/1.1 %d " % status)


def wait_for_a_timeout(hasty: tuple[str, int]) -> None:
    """All that came before has been open for longer than a request may take."""
    with connect(hasty) as connection:
        connection.sendall(b"POST /ec")
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", [b"/held", b"/held-stream"])
def test_what_comes_behind_a_request_does_not_cut_its_answer(
    app: FastAPI, hasty: tuple[str, int], gate: threading.Event, path: bytes
) -> None:
    @app.get("/held")
    async def answer() -> str:
        await asyncio.to_thread(gate.wait, PATIENCE)
        return "last"

    @app.get("/held-stream")
    async def stream() -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            yield "first"
            yield await answer()

        return StreamingResponse(lines())

    with ExitStack() as stack:
        connections = [stack.enter_context(connect(hasty)) for _ in range(2)]
        for connection in connections:
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        wait_for_a_timeout(hasty)
        for connection, behind in zip(connections, (b"\r\n", b"GET /li"), strict=True):
            connection.sendall(behind)
        wait_for_a_timeout(hasty)
        gate.set()
        for connection in connections:
            received = data = connection.recv(65536)
            while data and b"last" not in received:
                data = connection.recv(65536)
                received += data
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"last" in received


def test_an_empty_line_behind_an_answer_begins_no_request(hasty: tuple[str, int]) -> None:
    with connect(hasty) as connection:
        for _ in range(2):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            connection.sendall(b"\r\n")
            wait_for_a_timeout(hasty)


def test_http_1_0_gets_no_chunks(app: FastAPI, address: tuple[str, int]) -> None:
    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["first", "last"]))

    with connect(address) as connection:
        connection.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert body == b"firstlast"
    assert b"transfer-encoding" not in head


@pytest.mark.parametrize("path", ["/livez", "/metrics", "/docs", "/openapi.json", "/items/a", "/nothing", "/echo"])
def test_http_1_0_gets_the_length_of_all_but_streams(address: tuple[str, int], path: str) -> None:
    """Without it, an answer that was cut off would look whole (RFC 9112, 8)."""
    body = b'{"text": "%s"}' % (b"x" * 600_000) if path == "/echo" else b""  # sent back in parts
    method = b"POST" if body else b"GET"
    headers = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
    with connect(address) as connection:
        connection.sendall(b"%s %s HTTP/1.0\r\n%s\r\n%s" % (method, path.encode(), headers, body))
        head, _, content = read_all(connection).partition(b"\r\n\r\n")
    assert f"content-length: {len(content)}".encode() in head.lower().split(b"\r\n")
    assert len(content) > len(body)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_says_nothing_is_closed(hasty: tuple[str, int], sent: bytes) -> None:
    with connect(hasty) as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""
    assert refusals(hasty, "client_timeout") == 0


def test_a_head_without_an_end_is_refused(build: Any, serve: Any) -> None:
    with connect(serve(build())) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for index in range(200):
            connection.sendall(b"X-%d: %s\r\n" % (index, b"x" * 4096))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert f"{MAX_HEAD_BYTES:,} bytes" in error_of(answer)["message"]


def test_large_headers_below_the_limit_are_served(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: %s\r\n\r\n" % (b"x" * 60_000))
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_a_kept_connection_serves_longer_than_one_request_may_take(build: Any) -> None:
    """By the event loop's clock, which goes only as far as it is put here."""
    transport = Transport()
    body = b'{"text": "a"}'

    async def exchange() -> None:
        loop, now = asyncio.get_running_loop(), 0.0
        loop.time = lambda: now  # type: ignore[method-assign]
        protocol = protocol_of(build(), transport, client_timeout=TIMEOUT)
        for count in range(1, 4):
            protocol.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:5])
            now += TIMEOUT * 0.9
            for _ in range(2):  # turns, in which timers that are due run
                await asyncio.sleep(0)
            protocol.data_received(body[5:])
            while transport.written.count(b"HTTP/1.1 ") < count:
                await asyncio.sleep(0)
        assert not transport.closed
        assert transport.written.count(b"HTTP/1.1 200 ") == 3
        protocol.connection_lost(None)

    asyncio.run(exchange())


LONG = b"x" * MAX_HEAD_BYTES
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"


@pytest.mark.parametrize(
    "reads",
    [
        [b"GET /livez HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n"],
        [b"GET /livez HTTP/1.1\r\n" + b"X: 1\r\n" * 11_000 + b"\r\n"],
        [b"GET /livez?" + LONG + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"GET /livez HTTP/1.1\r\nX: ", LONG, LONG],
        [CHUNKED + b"X: " + LONG + b"x" * 512 + b"\r\n\r\n"],  # what is parsed at once is not counted
        [CHUNKED + b"X: ", LONG, LONG],
    ],
)
def test_a_head_over_the_limit_is_refused_however_it_comes(build: Any, reads: list[bytes]) -> None:
    """uvloop reads up to 256 KiB at once; a trailer is as good as a head."""
    answer = asyncio.run(answers(build(), reads, 1))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"headers_too_large" in answer


def test_heads_in_a_row_are_not_added_up(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        for end in (b"", b"", b"Connection: close\r\n"):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n%sX: %s\r\n\r\n" % (end, b"x" * 40_000))
        assert read_all(connection).count(b"HTTP/1.1 200 ") == 3


def test_a_probe_by_head_gets_no_body(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        connection.sendall(b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: 18\r\n" in answer  # as GET would say


def test_a_response_to_head_is_sent_and_the_connection_kept(build: Any) -> None:
    """Its head waits for no body."""
    head, get = (b"%s /livez HTTP/1.1\r\nHost: x\r\n\r\n" % method for method in (b"HEAD", b"GET"))
    assert statuses(asyncio.run(answers(build(), [head], 1))) == [b"200"]
    answer = asyncio.run(answers(build(), [head, get], 2))
    assert statuses(answer) == [b"200", b"200"]
    assert answer.count(b'{"status":"alive"}') == 1
    assert answer.endswith(b'{"status":"alive"}')


def test_a_head_is_sent_with_the_first_part_of_the_body(build: Any) -> None:
    """As ASGI requires: until then, the response may still become an error."""
    app = build()
    go_on = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        await go_on.wait()
        yield b"a"
        yield b"b"

    @app.get("/parts")
    async def stream() -> StreamingResponse:
        return StreamingResponse(parts())

    async def read() -> None:
        transport = Transport()
        protocol: Any = protocol_of(app, transport)
        protocol.data_received(b"GET /parts HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(100):
            await asyncio.sleep(0)
        assert transport.written == b""
        go_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert statuses(transport.written) == [b"200"]
        assert transport.written.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
        protocol.connection_lost(None)

    asyncio.run(read())


def test_what_is_no_http_gets_the_envelope(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        connection.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["code"] == "invalid_http"
    assert refusals(address, "invalid_http") == 1


@pytest.fixture
def slow_reader() -> Iterator[socket.socket]:
    """A connection that is sent no more than a little before it reads."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        yield connection


def test_a_response_that_is_not_read_is_given_up(hasty: tuple[str, int], slow_reader: socket.socket) -> None:
    slow_reader.connect(hasty)
    slow_reader.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    assert slow_reader.recv(100).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: httpx.get(f"http://{hasty[0]}:{hasty[1]}/open").text == "1")


def test_a_slow_reader_gets_all_of_its_answer(hasty: tuple[str, int], slow_reader: socket.socket) -> None:
    """It takes twice the limit, but never pauses for that long."""
    slow_reader.connect(hasty)
    slow_reader.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    received, paused = 0, 0.0
    while data := slow_reader.recv(1 << 20):
        received += len(data)
        if received > 100_000 * (paused / 0.01) and paused < 2 * TIMEOUT:
            time.sleep(0.01)
            paused += 0.01
    assert received > 20_000_000
    assert paused >= 2 * TIMEOUT


def test_a_client_that_leaves_within_its_body_is_counted_as_such(address: tuple[str, int]) -> None:
    with capture_logs() as logs:
        with connect(address) as connection:
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        wait_until(lambda: any(entry["event"] == "request" for entry in logs))
    assert [entry["status"] for entry in logs if entry["event"] == "request"] == [499]


def test_a_client_that_leaves_behind_a_pipeline_ends_the_request_that_is_answered(address: tuple[str, int]) -> None:
    """uvicorn tells only the newest request of a connection; the one before went on and failed with a traceback."""
    with capture_logs() as logs:
        with connect(address) as connection:
            connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            connection.recv(100)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: any(entry["event"] == "request" for entry in logs))
    assert [entry["event"] for entry in logs if "event" in entry] == ["request"]


def test_nonsense_behind_a_pipeline_is_answered_in_its_turn(
    app: FastAPI, address: tuple[str, int], gate: threading.Event
) -> None:
    @app.get("/held")
    async def held() -> str:
        await asyncio.to_thread(gate.wait, PATIENCE)
        return "held"

    with connect(address) as connection:
        connection.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01\r\n\r\n")
        gate.set()
        answers = read_all(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"400"]
    assert refusals(address, "invalid_http") == 1


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUPGRADE: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


@pytest.mark.case("D02")
def test_a_body_with_a_wish_for_http_2_is_refused_with_the_way_out(address: tuple[str, int]) -> None:
    """Java's HttpClient and `curl --http2` send it. httptools takes the body for bytes of the other protocol."""
    body = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    request = HEAD + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for behind in (b"", b"GET /open HTTP/1.1\r\nHost: x\r\n\r\n"):
        with connect(address) as connection:
            connection.sendall(behind + request)
            answers = read_all(connection)
        assert b"alive" not in answers
        assert len(re.findall(rb"HTTP/1.1 \d", answers)) == 1 + bool(behind)
        error = error_of(answers[answers.rindex(b"HTTP/1.1 400 ") :])
        assert error["code"] == "upgrade_not_supported"
        assert "--http1.1" in error["message"]


@pytest.mark.case("D02")
def test_a_wish_for_http_2_without_a_body_is_ignored(address: tuple[str, int]) -> None:
    """RFC 9110, 7.8."""
    request = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
    with connect(address) as connection:
        connection.sendall(request + UPGRADE + b"\r\n" + request + b"Connection: close\r\n\r\n")
        assert read_all(connection).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.case("D03")
def test_requests_that_wait_for_their_turn_stay_unparsed(app: FastAPI, gate: threading.Event) -> None:
    @app.get("/held")
    async def held() -> str:
        await asyncio.to_thread(gate.wait, PATIENCE)
        return "held"

    async def flood() -> None:
        transport = Transport()
        protocol = protocol_of(app, transport)
        protocol.data_received(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        protocol.data_received(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
        assert len(protocol.pipeline) < 20
        assert not transport.reads
        gate.set()
        while transport.written.count(b"HTTP/1.1 200 ") < 2_001:
            await asyncio.sleep(0)
            assert len(protocol.pipeline) < 20
        protocol.connection_lost(None)

    asyncio.run(flood())


@pytest.mark.case("D12")
def test_a_reader_that_is_slow_but_steady_is_not_cut_off(hasty: tuple[str, int], slow_reader: socket.socket) -> None:
    """What it takes frees the system's buffer long before the event loop may write again."""
    slow_reader.connect(hasty)
    slow_reader.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    deadline = time.monotonic() + 4 * TIMEOUT
    while time.monotonic() < deadline:
        assert slow_reader.recv(2_000)
        time.sleep(TIMEOUT / 20)
    assert httpx.get(f"http://{hasty[0]}:{hasty[1]}/open").text == "2"


@pytest.mark.case("D24")
def test_a_stream_that_the_client_left_is_logged_and_counted_as_such(address: tuple[str, int]) -> None:
    with capture_logs() as logs:
        for _ in range(4):
            with connect(address) as connection:
                connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: sum(entry["event"] == "request" for entry in logs) == 4)
    assert [entry["status"] for entry in logs if entry["event"] == "request"] == [499] * 4
    page = httpx.get(f"http://{address[0]}:{address[1]}/metrics").text
    assert 'ownlm_http_requests_total{method="GET",route="/endless",status="499"} 4.0' in page


class Feeding(Transport):
    """Sends requests for as long as the protocol reads, a packet for each time that it is asked to read on."""

    protocol: Any
    packets = 200

    def resume_reading(self) -> None:
        super().resume_reading()
        asyncio.get_running_loop().call_soon(self.feed)

    def feed(self) -> None:
        if self.reads and self.packets:
            self.packets -= 1
            self.protocol.data_received(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
            if self.reads:
                asyncio.get_running_loop().call_soon(self.feed)


@pytest.mark.case("D03")
def test_a_client_that_reads_its_answers_is_not_read_further_than_they_are(app: FastAPI) -> None:
    async def flood() -> None:
        transport = Feeding()
        transport.protocol = protocol = protocol_of(app, transport)
        transport.feed()
        while transport.written.count(b"HTTP/1.1 200 ") < 3_000:
            await asyncio.sleep(0)
            assert len(protocol._unparsed) < 100_000
            transport.written = transport.written[-2_000_000:]
        protocol.connection_lost(None)

    asyncio.run(flood())


@pytest.mark.case("D02")
@pytest.mark.parametrize("line", [b"GET http://host HTTP/1.1", b"CONNECT x:443 HTTP/1.1", b"GET http:// HTTP/1.1"])
def test_a_target_that_cannot_be_read_is_refused_by_itself(build: Any, line: bytes) -> None:
    good = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    for before in (b"", good):
        answer = asyncio.run(answers(build(), [before, line + b"\r\nHost: x\r\n\r\n"], 1 + bool(before)))
        assert statuses(answer) == [b"200"] * bool(before) + [b"400"]
        assert b"the request target is invalid" in answer


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_other_versions_are_refused(build: Any, version: bytes) -> None:
    answer = asyncio.run(answers(build(), [b"GET /livez HTTP/%s\r\nHost: x\r\n\r\n" % version], 1))
    assert statuses(answer) in ([b"505"], [b"400"])


def test_garbage_is_counted_by_no_method(build: Any) -> None:
    """The parser still has the method of the request before."""
    with capture_logs() as logs:
        asyncio.run(answers(build(), [b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\r\n\r\n"], 2))
    assert [entry["method"] for entry in logs if entry["event"] == "request"] == ["HEAD", "other"]


def test_an_empty_body_may_wish_for_http_2(build: Any) -> None:
    data = b"POST /nothing HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"Content-Length: 0\r\n\r\n"
    assert statuses(asyncio.run(answers(build(), [data], 1))) == [b"404"]
