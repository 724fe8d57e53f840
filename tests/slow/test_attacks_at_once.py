"""Five attacks on memory at once, on both services: probes are answered in time, and memory stays within its bound.

Figures are printed (`pytest -s`).
"""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.bpe import Tokenizer
from tests.slow.probe import probing

MOST_MIB = 500
MOST_SECONDS = 0.25  # for an answer of /livez, see `Probe.slowest`
SECONDS = 30.0
LIMIT = 8 << 20  # of a body
TEXT = "Once upon a time there was a little fox. "

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.case("D03", "D04", "D06", "D07", "D08")]


def post(path: str, body: bytes, content_type: str = "application/json", length: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def ask(port: int, requests: list[bytes]) -> None:
    """Send requests one by one, and take the answers."""
    for request in requests:
        with connect(port) as connection:
            connection.sendall(request)
            while connection.recv(1 << 20):
                pass


def send_only(port: int, data: bytes, connections: int) -> None:
    """Send over many connections what gets through, hold them a while, and take nothing."""
    with ExitStack() as opened:
        for _ in range(connections):
            connection = opened.enter_context(connect(port))
            connection.settimeout(0.1)
            with suppress(OSError):
                connection.sendall(data)
        time.sleep(1)


def attacks(tokenizer: Tokenizer, port: int, inference_port: int) -> dict[str, Callable[[], None]]:
    """What each attacker repeats."""
    pipeline = b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000
    punctuation = "".join(random.Random(1).choices("!#$%&'()*+,-./:;<=>?@[]^_`{|}~", k=LIMIT - 100))
    pieces = [
        post("/encode", json.dumps({"text": text, "return_pieces": True}).encode())
        for text in (punctuation, "a" * 5_000_000)
    ]
    longest = max(range(tokenizer.vocab_size), key=lambda token: len(tokenizer.token_bytes(token)))
    ids = post("/decode", longest.to_bytes(2, "little") * (LIMIT // 2), "application/octet-stream")
    half = post("/encode", b" " * (LIMIT - 1), length=LIMIT)
    prompt = post("/generate", json.dumps({"prompt": TEXT * (LIMIT // len(TEXT) - 10)}).encode())
    return {
        "D03 tokenizer": partial(send_only, port, pipeline, 60),
        "D03 inference": partial(send_only, inference_port, pipeline, 60),
        "D04": partial(ask, port, pieces),
        "D06": partial(ask, port, [ids]),
        "D07 tokenizer": partial(send_only, port, half, 100),
        "D07 inference": partial(send_only, inference_port, half.replace(b"/encode", b"/generate"), 100),
        **{f"D08, client {number}": partial(ask, inference_port, [prompt]) for number in range(4)},
    }


def test_five_attacks_at_once(process: Callable[..., Any], model_dir: Path, tokenizer: Tokenizer) -> None:
    names = ("tokenizer", "inference")
    services = [process("-m", f"services.{name}", model_dir=model_dir, client_timeout=5).wait_ready() for name in names]
    for service in services:
        threading.Thread(target=service.popen.stdout.read, daemon=True).start()
    processes = [psutil.Process(service.popen.pid) for service in services]
    most = [0, 0]
    done: Counter[str] = Counter()
    stop = threading.Event()

    def repeat(name: str, attack: Callable[[], None]) -> None:
        while not stop.is_set():
            with suppress(OSError):  # a service may hang up on it
                attack()
            done[name] += 1

    ports = [int(service.url.rsplit(":", 1)[1]) for service in services]
    attackers = [threading.Thread(target=repeat, args=pair) for pair in attacks(tokenizer, *ports).items()]
    with probing([(service.url, service.popen.pid) for service in services]) as probe:
        for attacker in attackers:
            attacker.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            most = [max(high, one.memory_info().rss >> 20) for high, one in zip(most, processes, strict=True)]
            time.sleep(0.05)
        stop.set()
        for attacker in attackers:
            attacker.join(120)
            assert not attacker.is_alive()
    print(f"\nattacks: {dict(done)}; at most {dict(zip(names, most, strict=True))} MiB\n{probe}")
    assert len(done) == len(attackers)
    assert max(most) < MOST_MIB
    assert probe.slowest <= MOST_SECONDS
