import socket
import threading
from typing import Any

import pytest

from benchmarks.serving.load import measure
from benchmarks.serving.tables import judge, render

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: max=100\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.fixture
def port():
    """A server that answers two connections with three tokens each; its head ends as the end of a body does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(HEAD)
                for token in range(3):
                    connection.sendall(chunk(b'data: {"n": %d}\n\n' % (token + 1)))
                connection.sendall(b"0\r\n\r\n")

    server = threading.Thread(target=answer)
    server.start()
    yield listener.getsockname()[1]
    server.join()
    listener.close()


def test_a_stream_is_read_to_its_end_and_no_further(port: int) -> None:
    ends: list[bytes] = []

    def count(tail: bytes) -> int:
        ends.append(tail)
        return 3

    seen = measure(port, "/", [{"prompt": [1]}, {"prompt": [2]}], clients=1, count_tokens=count)
    assert len(ends) == 2
    assert all(end.endswith(b'data: {"n": 3}\n\n\r\n0\r\n\r\n') for end in ends)
    assert seen.tokens_per_second > 0


def result(name: str, clients: int, rate: float, first: float, between: float, p99: float) -> dict[str, Any]:
    times = {"first_token_ms": first, "between_ms": between, "between_p99_ms": p99}
    return {"name": name, "clients": clients, "tokens_per_second": rate, "least": rate, "most": rate, **times} | {
        "memory_mb": 1.0
    }


def test_verdicts_are_those_of_the_targets() -> None:
    results = [
        result("ownlm float32", 8, rate=250, first=51, between=1, p99=1.9),
        result("llama.cpp f32", 8, rate=100, first=100, between=1, p99=9),
    ]
    verdicts = judge(results)
    assert [(verdict.measured, verdict.met) for verdict in verdicts] == [
        ("2.50 times", True),
        ("0.51 times", False),
        ("1.90 times", True),
    ]
    report = {
        "machine": {"processor": "a"},
        "versions": {"torch": "2"},
        "command": "c",
        "results": results,
        "verdicts": [verdict._asdict() for verdict in verdicts],
    }
    assert "| ownlm float32 | 8 | 250 | 250 | 250 | 51.0 | 1.0 | 1.9 | 1 |" in render(report)


def test_a_median_of_zero_misses_the_target() -> None:
    """A small model, whose tokens come faster than a busy client reads them."""
    [verdict] = judge([result("ownlm float32", 32, rate=9000, first=1, between=0, p99=2.5)])
    assert (verdict.measured, verdict.met) == ("2.5 ms, median 0", False)
