"""Requests whose headers can be read in two ways, hosts that are not ours, and refusals that look like any answer."""

import asyncio
import socket
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests.shared.http.connection import answers, statuses

JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
PAGE = "https://page.example"


def ask(app: Any, data: bytes, count: int = 1) -> bytes:
    return asyncio.run(answers(app, [data], count))


def post(body: bytes, headers: bytes = JSON, version: bytes = b"1.1") -> bytes:
    return b"POST /echo HTTP/%s\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (version, headers, len(body), body)


@pytest.mark.case("D10")
@pytest.mark.parametrize(
    ("headers", "trailer", "settings", "status"),
    [
        (JSON, b"Authorization: Bearer key-of-mine", {"api_keys": "key-of-mine"}, b"401"),
        (b"", JSON.strip(), {}, b"415"),
        (JSON, b"Content-Encoding: gzip", {}, b"200"),
        (JSON, b"Host: other", {}, b"200"),
        (JSON, b"X-Request-ID: chosen", {}, b"200"),
    ],
)
def test_trailers_are_ignored(build: Any, headers: bytes, trailer: bytes, settings: Any, status: bytes) -> None:
    """RFC 9110, 6.5.1."""
    body = b'd\r\n{"text": "a"}\r\n0\r\n'
    answer = ask(build(**settings), CHUNKED + headers + b"\r\n" + body + trailer + b"\r\n\r\n")
    assert statuses(answer) == [status]
    assert b"chosen" not in answer


@pytest.mark.case("D11")
@pytest.mark.parametrize("size", [10, 5_000, 70_000])
@pytest.mark.parametrize("name", [b"Content-Type", b"Host", b"Authorization", b"Content-Encoding"])
def test_single_headers_that_are_there_twice_are_refused_at_any_size(build: Any, size: int, name: bytes) -> None:
    values = {b"Content-Type": (b"text/plain", b"application/json"), b"Host": (b"a",)}.get(name, (b"identity",) * 2)
    headers = b"".join(b"%s: %s\r\n" % (name, value) for value in values)
    answer = ask(build(), post(b'{"text": "%s"}' % (b"x" * size), headers))
    assert statuses(answer) == [b"400"]
    assert b"%s' occurs 2 times" % name in answer


@pytest.mark.case("D05")
def test_a_content_type_that_takes_long_to_read_is_refused(build: Any) -> None:
    """`email.message` reads parameters in time that grows with the square of their number."""
    with TestClient(build()) as client:
        started = time.process_time()
        for _ in range(100):
            response = client.post("/echo", content="hi", headers={"Content-Type": 'text/plain; a="' + ";" * 60_000})
            assert response.status_code == 400
            assert "60,015 bytes exceeds the limit of 256" in response.json()["error"]["message"]
    assert time.process_time() - started < 10  # of ten minutes


@pytest.mark.case("D13")
def test_http_1_0_gets_no_interim_answer(build: Any) -> None:
    """RFC 9110, 10.1.1."""
    answer = ask(build(), post(b'{"text": "a"}', JSON + b"Expect: 100-continue\r\n", b"1.0"))
    assert statuses(answer) == [b"200"]
    assert b"100 Continue" in ask(build(), post(b'{"text": "a"}', JSON + b"Expect: 100-continue\r\n"), 2)


@pytest.mark.case("D14")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: a\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: a b\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nHost: user@a\r\n", b"400"),
        (b"GET /livez HTTP/1.0\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nHost: [::1]:8000\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nHost:\r\n", b"200"),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", b"501"),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", b"400"),
    ],
)
def test_hosts_and_transfer_codings(build: Any, head: bytes, status: bytes) -> None:
    """RFC 9112, 3.2 and 6.1."""
    assert statuses(ask(build(), head + b"\r\n")) == [status]


@pytest.mark.case("D14")
@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8000", 200),
        ({}, "127.0.0.1:1", 200),
        ({}, "[::1]:1", 200),
        ({}, "LOCALHOST.", 200),
        ({}, "evil.example", 400),
        ({}, "localhost.evil.example", 400),
        ({"host": "::1"}, "evil.example", 400),
        ({"host": "0.0.0.0"}, "evil.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "api.example, Other.example"}, "other.example:443", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "api.example"}, "localhost", 400),
        ({"allowed_hosts": "*"}, "evil.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "api.example"}, "172.18.0.3:8000", 200),
        ({"host": "::", "allowed_hosts": "api.example"}, "[fd00::3]:8000", 200),
        ({"host": "::", "allowed_hosts": "api.example"}, "[::ffff:10.0.0.3]", 200),
        ({"host": "::", "allowed_hosts": "api.example"}, "[fd00::1::2]", 400),
        ({}, "10.0.0.7.evil.example", 400),
        ({}, "10.0.0", 400),
        ({}, "2130706433", 400),
        ({}, "0x7f000001", 400),
        ({}, "0177.0.0.1", 400),
        ({}, "[10.0.0]", 400),
    ],
)
def test_a_service_of_this_machine_is_not_called_by_names_of_others(
    build: Any, settings: Any, host: str, status: int
) -> None:
    with TestClient(build(**{"allowed_hosts": None, **settings})) as client:
        response = client.get("/livez", headers={"Host": host})
        assert response.status_code == status
        if status == 400:
            assert "OWNLM_ALLOWED_HOSTS" in response.json()["error"]["message"]


@pytest.mark.case("D16")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n%sX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /livez HTTP/1.1\r\n%s\x00\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n%sHost: y\r\n\r\n", b"400"),
        (b"GET /items/broken HTTP/1.1\r\n%s\r\n", b"500"),
        (b"POST /echo HTTP/1.1\r\n%sContent-Length: 999999999\r\n\r\n", b"413"),
    ],
)
def test_refusals_can_be_read_by_pages_and_have_an_id(build: Any, data: bytes, status: bytes) -> None:
    head = b"Origin: %s\r\nX-Request-ID: chosen\r\nHost: x\r\n" % PAGE.encode()
    answer = ask(build(cors_origins=PAGE), data % head)
    assert statuses(answer) == [status]
    assert b"access-control-allow-origin: %s\r\n" % PAGE.encode() in answer
    assert b"x-request-id: chosen\r\n" in answer


@pytest.mark.case("D16")
def test_a_slow_body_is_refused_as_any_other(build: Any, serve: Any) -> None:
    address = serve(build(cors_origins=PAGE), client_timeout=0.2)
    with socket.create_connection(address, timeout=240) as connection:
        origin = b"Origin: %s\r\n" % PAGE.encode()
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + JSON + origin + b"Content-Length: 9\r\n\r\n{")
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert statuses(answer) == [b"408"]
    assert b"access-control-allow-origin: %s\r\n" % PAGE.encode() in answer
    assert b"x-request-id: " in answer


@pytest.mark.case("D09")
def test_garbage_behind_a_request_is_no_fault_of_ours(build: Any) -> None:
    app = build()
    with capture_logs() as logs:
        assert statuses(ask(app, post(b'{"text": "a"}') + b"\x00\r\n\r\n", 2)) == [b"200", b"400"]
    assert [entry["status"] for entry in logs if entry["event"] == "request"] == [200, 400]
    assert not any("exc_info" in entry or entry["log_level"] == "error" for entry in logs)
    assert b'status="500"' not in ask(app, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.case("D17")
def test_health_is_an_alias_of_readyz(build: Any) -> None:
    with TestClient(build(api_keys="key-of-mine")) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        assert client.get("/health").json() == client.get("/readyz").json()
        assert client.head("/health").status_code == 200
