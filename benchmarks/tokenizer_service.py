"""The tokenizer service beside what little a server can do, and beside llama.cpp's `/tokenize`, asked by wrk.

`python -m benchmarks.tokenizer_service --llama-server PATH` pins each server to one processor and its client to
another, lets them take turns, and prints a table of medians and one line of JSON. It needs `wrk`, two processors and
the reference data (`OWNLM_DATA`).
"""

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file, reference_texts

CONNECTIONS = 16
VOCAB_SIZE = 10_000
BULK_BYTES = 4_000_000
TARGETS = {"ownlm /encode": ("requests/s", 3000.0), "ownlm /encode, raw": ("MB/s", 100.0)}

_ROOT = Path(__file__).parents[1]
_TEXT = (
    "Once upon a time there was a little girl named Lily. She loved to play outside in the sunshine with her big red"
    " ball. One day, her mom asked her to help clean the house, so Lily put the ball away now."
)
_START_SECONDS = 60.0
_WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{body}]]
"""


def main() -> int:
    """Measure, report, and compare with the targets: 0 if all are met, else 1."""
    options = _options()
    machine = describe_machine()
    mine, theirs, *_ = _processors()
    os.sched_setaffinity(0, {mine})
    with tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name, ExitStack() as stack:
        contests = _contests(options, Path(name), theirs, stack)
        results: dict[str, list[dict[str, float]]] = {contest.name: [] for contest in contests}
        for _ in range(options.rounds):
            for contest in contests:
                results[contest.name].append(contest.measure())
                print(".", end="", file=sys.stderr, flush=True)
    medians = {
        name: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in results.items()
    }
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.tokenizer_service", *sys.argv[1:]]),
        "machine": machine,
        "versions": installed_versions(["fastapi", "uvicorn", "uvloop", "httptools", "pydantic"]),
        "medians": medians,
    }
    print(_table(medians), end="\n\n")
    print(json.dumps(report))
    return 0 if all(medians[name][unit] >= target for name, (unit, target) in TARGETS.items()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizer_service", description=__doc__)
    parser.add_argument("--llama-server", type=existing_file, help="llama.cpp's server; left out where none is given")
    parser.add_argument("--rounds", type=int, default=5, help="of all in turn; 5 by default")
    parser.add_argument("--seconds", type=int, default=4, help="of each turn; 4 by default")
    return parser.parse_args()


def _processors() -> list[int]:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("this takes two processors, one for the servers and one for their client; there is one")
    return allowed


# ---- The contestants


@dataclass(frozen=True)
class _Contest:
    name: str
    measure: Callable[[], dict[str, float]]


def _contests(options: argparse.Namespace, work: Path, processor: int, stack: ExitStack) -> list[_Contest]:
    from shared.bpe import Tokenizer

    wrk = shutil.which("wrk")
    if wrk is None:
        raise SystemExit("wrk is not installed (Debian: apt-get install wrk)")
    folder = _make_model(work / "model")
    tokenizer = Tokenizer.from_files(folder)
    ids = tokenizer.encode(_TEXT)
    answer = json.dumps({"tokens": ids, "count": len(ids), "fingerprint": tokenizer.fingerprint})

    def start(name: str, *command: str, ready: str = "/", **variables: str) -> "_Server":
        server = _Server(name, command, ready, processor, variables)
        stack.callback(server.close)
        return server

    def asked(name: str, server: "_Server", path: str, body: dict[str, Any]) -> _Contest:
        script = work / f"{len(list(work.iterdir()))}.lua"
        script.write_text(_WRK_SCRIPT.format(body=json.dumps(body)))
        command = [wrk, "-t1", f"-c{CONNECTIONS}", f"-d{options.seconds}s", "-s", str(script), server.url + path]
        return _Contest(name, lambda: _ask(command, server))

    python = (sys.executable, "-m")
    ours = start("ownlm", *python, "services.tokenizer", ready="/readyz", OWNLM_MODEL_DIR=str(folder))
    contests = [
        asked("ownlm /encode", ours, "/encode", {"text": _TEXT}),
        asked("ownlm /decode", ours, "/decode", {"tokens": ids}),
    ]
    for name, kind in (("FastAPI and pydantic, no work", "fastapi"), ("raw ASGI, no work", "asgi")):
        server = start(name, *python, "benchmarks.peers.empty_servers", kind, "{port}", answer)
        contests.append(asked(name, server, "/", {"text": _TEXT}))
    if options.llama_server:
        from trainer.export.gguf_file import write_gguf

        write_gguf(folder, work / "model.gguf", "f32")
        command = (str(options.llama_server), "--model", str(work / "model.gguf"), "--host", "127.0.0.1")
        quiet = ("--port", "{port}", "--threads", "1", "--no-webui", "--log-disable")
        server = start("llama.cpp", *command, *quiet, ready="/health")
        contests.append(asked("llama.cpp /tokenize", server, "/tokenize", {"content": _TEXT}))
    return [*contests, *_bulk(ours)]


def _make_model(folder: Path) -> Path:
    """A vocabulary trained on stories, and the smallest model, since llama.cpp serves no vocabulary alone."""
    from shared.bpe import train_bpe
    from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder

    tokenizer = train_bpe([_stories().decode()], VOCAB_SIZE, special_tokens=["<|endoftext|>"]).tokenizer
    config = ModelConfig(
        vocab_size=VOCAB_SIZE, context_length=256, d_model=64, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64,
        d_ff=64, tie_embeddings=False,
    )  # fmt: skip
    defaults = GenerationDefaults(eos_token_ids=(tokenizer.special_tokens["<|endoftext|>"],))
    save_model_folder(folder, model=Transformer(config), tokenizer=tokenizer, generation=defaults, provenance={})
    return folder


def _stories() -> bytes:
    (path,) = reference_texts("tinystories_train.txt")
    return path.read_bytes()


class _Server:
    """A process on one processor, idle between its turns."""

    def __init__(
        self, name: str, command: tuple[str, ...], ready: str, processor: int, variables: dict[str, str]
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            ["taskset", "-c", str(processor), *(part.replace("{port}", str(port)) for part in command)],
            env=os.environ | {"OWNLM_PORT": str(port)} | variables,
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready(ready):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise SystemExit(f"{name} does not start")
            time.sleep(0.1)

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(15)

    def _is_ready(self, path: str) -> bool:
        try:
            urllib.request.urlopen(self.url + path, timeout=2).close()
        except urllib.error.HTTPError as error:
            return error.code == 405  # a route for POST only
        except OSError:
            return False
        return True


# ---- Many small requests


def _ask(command: list[str], server: _Server) -> dict[str, float]:
    before = server.cpu_seconds
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = server.cpu_seconds - before
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"{shlex.join(command)}:\n{output}")
    requests, rate = re.search(r"(\d+) requests in", output), re.search(r"Requests/sec:\s*([\d.]+)", output)
    assert requests
    assert rate
    return {"requests/s": float(rate[1]), "requests/CPU-second": int(requests[1]) / used}


# ---- Few large ones


def _bulk(server: _Server) -> list[_Contest]:
    text = _stories()[:BULK_BYTES].decode(errors="ignore").encode()
    ids = _post(server.url, "/encode", "text/plain; charset=utf-8", text)
    tokens = json.dumps({"tokens": memoryview(ids).cast("H").tolist()}).encode()
    cases = (
        ("ownlm /encode, raw", "/encode", "text/plain; charset=utf-8", text),
        ("ownlm /decode, raw", "/decode", "application/octet-stream", ids),
        ("ownlm /encode, JSON", "/encode", "application/json", json.dumps({"text": text.decode()}).encode()),
        ("ownlm /decode, JSON", "/decode", "application/json", tokens),
    )

    def measure(path: str, content_type: str, body: bytes) -> dict[str, float]:
        before, started = server.cpu_seconds, time.perf_counter()
        for _ in range(5):
            _post(server.url, path, content_type, body)
        megabytes, seconds = 5 * len(text) / 1e6, time.perf_counter() - started
        return {"MB/s": megabytes / seconds, "MB/CPU-second": megabytes / (server.cpu_seconds - before)}

    return [_Contest(name, lambda case=case: measure(*case)) for name, *case in cases]


def _post(url: str, path: str, content_type: str, body: bytes) -> bytes:
    """One request by as lean a client as Python has."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nConnection: close\r\n"
        accept = "Accept: application/octet-stream\r\n"
        connection.sendall(f"{head}{accept}Content-Length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body)
        answer = bytearray()
        while received := connection.recv(1 << 20):
            answer += received
    head_end = answer.index(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"{path}: {answer[:1000]!r}")
    return bytes(answer[head_end + 4 :])


def _table(medians: dict[str, dict[str, float]]) -> str:
    """The medians, and how many times as fast each is as ours at the same."""
    lines = ["| | per second | per CPU-second | ours is |", "| --- | --- | --- | --- |"]
    ours = medians["ownlm /encode"]["requests/s"]
    for name, values in medians.items():
        (unit, rate), (_, effective) = values.items()
        ratio = f"{ours / rate:.2f} times" if unit == "requests/s" and not name.startswith("ownlm") else ""
        lines.append(f"| {name} | {rate:,.0f} {unit.removesuffix('/s')} | {effective:,.0f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
