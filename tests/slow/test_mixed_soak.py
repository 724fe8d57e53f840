"""Ten minutes of all kinds of requests to both services, with a training beside: memory is flat after the third.

Flat: the median of no later minute is more than `MOST_GROWTH` above that of the fourth. What requests take while they
are served comes and goes; what is left of them is seen in the median. Figures are printed (`pytest -s`).
`OWNLM_SOAK_SECONDS` makes it shorter: a minute is a tenth of that.
"""

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.slow.probe import probing

SECONDS = float(os.environ.get("OWNLM_SOAK_SECONDS", "600"))
WORKERS = 12
MINUTE = SECONDS / 10
MOST_GROWTH, MOST = 16, 500  # MiB
MOST_SECONDS = 0.25  # for an answer of /livez, see `Probe.slowest`
JSON = {"Content-Type": "application/json"}
TEXT = "Once upon a time there was a little fox. "

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600), pytest.mark.case("D03", "D04", "D06", "D07", "D08")]


class Traffic:
    """Thirteen kinds of requests, and how often each got which status."""

    def __init__(self, tokenizer: str, inference: str) -> None:
        self.tokenizer, self.inference = tokenizer, inference
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.stop = threading.Event()

    def work(self, seed: int) -> None:
        choose = random.Random(seed)
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("ask_")]
        assert len(kinds) == 13
        with httpx.Client(timeout=120) as client:
            while not self.stop.is_set():
                kind = choose.choice(kinds)
                self.statuses[kind.__name__, kind(client, choose)] += 1

    def ask_encode(self, client: httpx.Client, choose: random.Random) -> int:
        return client.post(f"{self.tokenizer}/encode", json={"text": TEXT * choose.randint(1, 50)}).status_code

    def ask_encode_large(self, client: httpx.Client, choose: random.Random) -> int:
        text = TEXT * choose.randint(1_000, 50_000)
        return client.post(f"{self.tokenizer}/encode", content=text, headers={"Content-Type": "text/plain"}).status_code

    def ask_pieces(self, client: httpx.Client, choose: random.Random) -> int:
        body = {"text": TEXT * choose.choice([1, 100, 40_000]), "return_pieces": True}
        return client.post(f"{self.tokenizer}/encode", json=body).status_code

    def ask_decode(self, client: httpx.Client, choose: random.Random) -> int:
        return client.post(f"{self.tokenizer}/decode", json={"tokens": [65] * choose.randint(1, 10_000)}).status_code

    def ask_decode_raw(self, client: httpx.Client, choose: random.Random) -> int:
        headers = {"Content-Type": "application/octet-stream"}
        body = b"\x41\x00" * choose.randint(1, 1_000_000)
        return client.post(f"{self.tokenizer}/decode", content=body, headers=headers).status_code

    def ask_nonsense(self, client: httpx.Client, choose: random.Random) -> int:
        url = choose.choice([f"{self.tokenizer}/encode", f"{self.inference}/generate"])
        return client.post(url, content=choose.randbytes(choose.randint(0, 100_000)), headers=JSON).status_code

    def ask_too_much(self, client: httpx.Client, choose: random.Random) -> int:
        body = {"prompt": "a" * choose.randint(10_000, 4_000_000)}
        return client.post(f"{self.inference}/generate", json=body).status_code

    def ask_whole(self, client: httpx.Client, choose: random.Random) -> int:
        body = {"prompt": TEXT, "max_tokens": choose.randint(1, 40), "n": choose.randint(1, 3), "logprobs": 2}
        return client.post(f"{self.inference}/generate", json=body).status_code

    def ask_stream(self, client: httpx.Client, choose: random.Random) -> int:
        body = {"prompt": TEXT, "max_tokens": choose.randint(1, 40), "stream": True}
        with client.stream("POST", f"{self.inference}/v1/completions", json=body) as response:
            for _ in response.iter_bytes():
                pass
        return response.status_code

    def ask_and_leave(self, client: httpx.Client, choose: random.Random) -> int:
        body = {"prompt": TEXT, "max_tokens": 80, "ignore_eos": True, "stream": True}
        with client.stream("POST", f"{self.inference}/generate", json=body) as response:
            for count, _ in enumerate(response.iter_bytes()):
                if count == choose.randint(0, 5):
                    break
        return response.status_code

    def ask_pipelined(self, _client: httpx.Client, choose: random.Random) -> int:
        with socket.create_connection(("127.0.0.1", int(self.tokenizer.rsplit(":", 1)[1])), timeout=60) as connection:
            connection.settimeout(0.2)
            with suppress(TimeoutError):  # it is not read any further
                connection.sendall(b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n" * choose.randint(1, 20_000))
            connection.settimeout(60)
            return int(connection.recv(12)[9:12])

    def ask_half(self, _client: httpx.Client, choose: random.Random) -> int:
        url = choose.choice([self.tokenizer, self.inference])
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60) as connection:
            connection.sendall(b"POST /encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            connection.sendall(b"Content-Length: 8000000\r\n\r\n" + b" " * choose.randint(1, 2_000_000))
        return 0

    def ask_probe(self, client: httpx.Client, choose: random.Random) -> int:
        return client.get(f"{choose.choice([self.tokenizer, self.inference])}/livez").status_code


def resident(service: psutil.Process) -> float:
    """MiB of a service with all its processes; what these share counts for each."""
    return sum(one.memory_info().rss for one in [service, *service.children(recursive=True)]) / 2**20


@pytest.fixture
def training(tmp_path: Path, model_dir: Path) -> Any:
    """A training that goes on until SIGTERM."""
    text = tmp_path / "text.txt"
    text.write_text(f"{TEXT * 40}\n<|endoftext|>\n" * 200)
    trainer = [sys.executable, "-m", "trainer"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    data = tmp_path / "tokens"
    encode = [*trainer, "encode", str(text), "--tokenizer", str(model_dir), "--output", str(data)]
    subprocess.run(encode, check=True, env=environment, capture_output=True)
    shape = "--d-model 32 --num-layers 2 --num-heads 2 --context-length 64 --batch-size 4 --max-steps 1000000"
    train = [*trainer, "train", "--data", str(data), "--output", str(tmp_path / "run"), *shape.split()]
    with subprocess.Popen(train, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        yield run
        run.send_signal(signal.SIGTERM)
        run.wait(120)


def test_memory_is_flat(process: Callable[..., Any], model_dir: Path, training: Any) -> None:
    names = ("tokenizer", "inference")
    services = [
        process("-m", f"services.{name}", model_dir=model_dir, client_timeout=10).wait_ready() for name in names
    ]
    for service in services:
        threading.Thread(target=service.popen.stdout.read, daemon=True).start()
    traffic = Traffic(*(service.url for service in services))
    threads = [threading.Thread(target=traffic.work, args=(seed,)) for seed in range(WORKERS)]
    processes = [psutil.Process(service.popen.pid) for service in services]
    memory: dict[str, list[list[float]]] = {name: [[] for _ in range(10)] for name in names}
    with probing([(service.url, service.popen.pid) for service in services]) as probe:
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        while (minute := int((time.monotonic() - begun) / MINUTE)) < 10:
            for name, service in zip(names, processes, strict=True):
                memory[name][minute].append(resident(service))
            time.sleep(min(1, MINUTE / 10))
        traffic.stop.set()
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive()
    print(json.dumps({f"{kind} {status}": count for (kind, status), count in sorted(traffic.statuses.items())}))
    print(probe)
    assert training.poll() is None
    assert not {status for _, status in traffic.statuses} - {0, 200, 400, 413, 422, 429, 503}
    for name, minutes in memory.items():
        medians, most = list(map(statistics.median, minutes)), list(map(max, minutes))
        shown = ", ".join(f"{median:.0f} (to {high:.0f})" for median, high in zip(medians, most, strict=True))
        print(f"{name}, MiB by minutes: {shown}")
        assert max(medians[4:]) <= medians[3] + MOST_GROWTH
        assert max(most) < MOST
    assert probe.slowest <= MOST_SECONDS
