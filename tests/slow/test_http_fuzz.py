"""A hundred shapes of requests to both services, in one write, byte by byte and cut at random: the same answers."""

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.case("D01", "D02", "D09", "D10", "D11", "D15")]

SEED = 20261128
CUTS_OF_EACH = 10
# What differs from answer to answer: ids, dates, and the generated names of completions.
VOLATILE = re.compile(rb'((x-request-id|date): [^\r]*\r\n|"(id|created)":("[^"]*"|\d+)|[0-9a-f]+\r\n(?=data: ))')


def shapes(post: tuple[bytes, bytes]) -> list[bytes]:
    """Requests, each with a second one behind it that ends the connection."""
    path, good = post
    bodies = [
        good,
        b"",
        b"{",
        b'{"unknown": 1}',
        "{}".encode("utf-16"),
        b"\xef\xbb\xbf" + good,
        b"[" * 300,
        b"\x00" * 9,
    ]
    headers = [
        b"Content-Type: application/json\r\n",
        b"content-type:application/json; charset=utf-8\r\n",
        b"Content-Type: text/plain\r\nContent-Type: application/json\r\n",
        b"Content-Type: application/json\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
        b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
        b"Content-Type: application/json\r\nExpect: 100-continue\r\n",
    ]
    found = []
    for body, header, version in product(bodies, headers, [b"1.1", b"1.0"]):
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        found.append(b"POST %s HTTP/%s\r\nHost: localhost\r\n%s%s%s" % (path, version, header, length, body))
    chunks = [b"".join(b"%x\r\n%s\r\n" % (1, good[place : place + 1]) for place in range(len(good)))]
    chunks += [b"%x;name=value\r\n%s\r\n" % (len(good), good), b"zz\r\n"]
    for chunk, end in product(chunks, [b"0\r\n\r\n", b"0\r\nContent-Type: text/plain\r\nX: y\r\n\r\n", b"\r\n"]):
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sTransfer-Encoding: chunked\r\n\r\n" % (path, headers[0])
        found.append(head + chunk + end)
    found += [
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /livez HTTP/1.1\nHost: localhost\n\n",
        b"GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%6civez?a=b%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}" % path,
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x" % path,
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" % path,
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}" % path,
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" % path,
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" % path,
        b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX\x00: a\r\n\r\n",
        b"\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
    ]
    last = b"GET /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    return [shape + last for shape in found]


def ask(port: int, parts: list[bytes]) -> bytes:
    """What comes back until the server closes; without `Connection: close` it does so after its time."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
                if len(parts) > 1:
                    time.sleep(0.0002)  # lets the server read it by itself
            while data := connection.recv(1 << 16):
                answer += data
        except ConnectionError:
            pass  # sent into a connection that was refused already: what came before it counts
        return VOLATILE.sub(b"", answer)


@pytest.fixture(params=["tokenizer", "inference"])
def service(
    request: pytest.FixtureRequest, process: Callable[..., Any], model_dir: Path
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    running = process("-m", f"services.{request.param}", model_dir=model_dir, client_timeout=5).wait_ready()
    threading.Thread(target=running.popen.stdout.read, daemon=True).start()
    posts = {
        "tokenizer": (b"/encode", b'{"text": "Once upon\\r\\nUpgrade: a time"}'),
        "inference": (b"/generate", b'{"prompt": "Once", "max_tokens": 3, "temperature": 0, "seed": 1}'),
    }
    yield int(running.url.rsplit(":", 1)[1]), posts[request.param]
    assert running.popen.poll() is None


def test_answers_do_not_depend_on_cuts(service: tuple[int, tuple[bytes, bytes]]) -> None:
    port, post = service
    choose = random.Random(SEED)
    requests = shapes(post)
    assert len(requests) >= 100
    for data in requests:
        whole = ask(port, [data])
        assert whole.startswith(b"HTTP/1.1 "), data
        ways = [[data[place : place + 1] for place in range(len(data))]]
        for _ in range(CUTS_OF_EACH):
            edges = sorted({0, len(data), *(choose.randrange(len(data)) for _ in range(choose.randint(1, 4)))})
            ways.append([data[start:end] for start, end in pairwise(edges)])
        for parts in ways:
            assert ask(port, parts) == whole, (data, [len(part) for part in parts])
