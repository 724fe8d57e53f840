"""The worst inputs that each route takes, at 64 kB, 1 MB and 8 MB: time grows with their length, and others are served.

Time is that of the service's processor, so that a busy machine does not matter; figures are printed (`pytest -s`).
"""

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.case("D04", "D05", "D06", "D08", "D29")]

LIMIT = 8 << 20
SIZES = (64_000, 1_000_000, 8_000_000)
# A cache that overflows makes the larger input two or three times as slow a byte; the square would be eight times.
MOST_GROWTH = 4
PUNCTUATION = "".join(random.Random(1).choices("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~", k=4096))


def fill(unit: str) -> Callable[[int], str]:
    return lambda size: unit * (size // len(unit.encode()))


TEXTS = {
    "one letter": fill("a"),
    "spaces": fill(" "),
    "line ends": fill("\r\n"),
    "apostrophes": fill("'"),
    "contractions": fill("'s'll"),
    "digits": fill("1"),
    "punctuation": fill(PUNCTUATION),
    "one Chinese character": fill("\u8a18"),
    "marks": fill("\u0301\u0316"),
    "many marks": lambda size: "a" + "\u0301" * (size // 4) + "\u0316" * (size // 4),
    "emoji": fill("\U0001f468\u200d"),
    "special tokens": fill("<|endoftext|>"),
    "beginnings of special tokens": fill("<|"),
    "spaces before a letter": lambda size: " " * (size - 1) + "a",
}


@contextmanager
def neighbor(url: str, process: psutil.Process) -> Iterator[list[tuple[float, float]]]:
    """Asks for /livez all the time; collects how long the service works until it answers, and what a clock says."""
    waits: list[tuple[float, float]] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not stop.wait(0.02):
                worked, started = processor_seconds(process), time.perf_counter()
                assert client.get(f"{url}/livez").status_code == 200
                waits.append((processor_seconds(process) - worked, time.perf_counter() - started))

    thread = threading.Thread(target=ask)
    thread.start()
    yield waits
    stop.set()
    thread.join()


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def check(running: Any, name: str, request: Callable[[int], dict[str, Any]], path: str) -> None:
    """Ask with each size, compare the processor's time a byte, and see that others are served meanwhile."""
    process = psutil.Process(running.popen.pid)
    costs = []
    with httpx.Client(timeout=300) as client, neighbor(running.url, process) as waits:
        for size in SIZES:
            given = request(size)
            rounds = []
            for _ in range(3):
                before = processor_seconds(process)
                status = client.post(f"{running.url}{path}", **given).status_code
                rounds.append(processor_seconds(process) - before)
                assert status in {200, 400, 413, 422}, status
            costs.append(statistics.median(rounds))
    waits.append((0.0, 0.0))  # where all was refused before /livez was asked for
    worked, waited = map(max, zip(*waits, strict=True))
    shown = ", ".join(f"{size / 1e6:g} MB {cost * 1e3:.0f} ms" for size, cost in zip(SIZES, costs, strict=True))
    print(f"{path} {name}: {shown}; /livez after {worked * 1e3:.0f} ms, {waited * 1e3:.0f} ms by the clock")
    assert costs[2] <= 8 * MOST_GROWTH * max(costs[1], 0.02), shown
    assert worked < 0.25
    assert waited < 10  # without work too, however busy the machine is


@pytest.fixture(params=["plain", "qwen"])
def tokenizer_service(
    request: pytest.FixtureRequest, process: Callable[..., Any], model_dir: Path, tmp_path: Path
) -> Iterator[Any]:
    if request.param == "qwen":  # a large vocabulary, and NFC
        reference = request.getfixturevalue("data_dir")
        (tmp_path / "tokenizer.json").write_bytes((reference / "tokenizers/qwen/qwen3_tokenizer.json").read_bytes())
        model_dir = tmp_path
    running = process("-m", "services.tokenizer", model_dir=model_dir).wait_ready()
    threading.Thread(target=running.popen.stdout.read, daemon=True).start()
    yield running
    assert running.popen.poll() is None


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tokenizer_service: Any, name: str) -> None:
    text = TEXTS[name]
    plain = {"Content-Type": "text/plain"}
    check(tokenizer_service, name, lambda size: {"content": text(size).encode()[:LIMIT], "headers": plain}, "/encode")
    for option in ({"return_pieces": True}, {"allowed_special": "all"}):
        check(
            tokenizer_service,
            f"{name}, {option}",
            lambda size, o=option: {"json": {"text": text(size // 8), **o}},
            "/encode",
        )


IDS = "application/octet-stream"
JSON = "application/json"
BODIES: dict[str, tuple[str, str, Callable[[int], bytes]]] = {
    "the longest token": ("/decode", IDS, lambda size: b"\x05\x01" * (size // 2)),
    "ids as JSON": ("/decode", JSON, lambda size: b'{"tokens": [' + b"9," * (size // 2) + b"9]}"),
    "lists": ("/decode", JSON, lambda size: b'{"tokens": [' + b"[]," * (size // 3) + b"[]]}"),
    "nested lists": ("/encode", JSON, lambda size: b'{"text": ' + b"[" * size),
    "fields": ("/encode", JSON, lambda size: b"{" + b'"a":1,' * (size // 6) + b'"b":1}'),
    "quotes": ("/encode", JSON, lambda size: b'{"text": "' + b'\\"' * (size // 2) + b'"}'),
    "escapes": ("/encode", JSON, lambda size: b'{"text": "' + b"\\u0000" * (size // 6) + b'"}'),
    "a number": ("/encode", JSON, lambda size: b'{"text": ' + b"9" * size + b"}"),
    "white space": ("/encode", JSON, lambda size: b" " * size),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(tokenizer_service: Any, name: str) -> None:
    path, content_type, body = BODIES[name]
    headers = {"Content-Type": content_type}
    check(tokenizer_service, name, lambda size: {"content": body(size)[:LIMIT], "headers": headers}, path)


@pytest.fixture(scope="module")
def prompts() -> dict[str, Callable[[int], dict[str, Any]]]:
    return {
        "prompt": lambda size: {"prompt": "a" * size},
        "prompt of marks": lambda size: {"prompt": TEXTS["many marks"](size // 2)},
        "prompts": lambda size: {"prompt": ["a"] * (size // 4)},
        "ids": lambda size: {"prompt": [1] * (size // 4)},
        "stop": lambda size: {"prompt": "a", "stop": "a" * size},
        "stops": lambda size: {"prompt": "a", "stop": ["a"] * (size // 4)},
        "biases": lambda size: {"prompt": "a", "logit_bias": {str(token): 1 for token in range(size // 12)}},
        "stop ids": lambda size: {"prompt": "a", "stop_token_ids": [1] * (size // 4)},
    }


def test_prompts(process: Callable[..., Any], model_dir: Path, prompts: Any) -> None:
    running = process("-m", "services.inference", model_dir=model_dir, threads=1).wait_ready()
    threading.Thread(target=running.popen.stdout.read, daemon=True).start()
    for path in ("/generate", "/v1/completions"):
        for name, fields in prompts.items():
            check(running, name, lambda size, fields=fields: {"json": {"max_tokens": 1, **fields(size // 2)}}, path)
    assert running.popen.poll() is None
