"""The servers that are measured, each with its way of asking for the same thing."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NEW_TOKENS = 128
TEMPERATURE, TOP_P = 0.8, 0.95
CONTEXT = 256
MOST_CLIENTS = 32

_ROOT = Path(__file__).parents[2]
_START_SECONDS = 600.0  # vLLM compiles the model


@dataclass(frozen=True)
class Contestant:
    """A server and how it is asked.

    Attributes:
        name: For the table.
        command: Starts it; `{port}` stands for its port.
        environment: Variables besides this process' own.
        ready_path: Answers 200 once the model is loaded.
        path: Where completions are asked for.
        sampling: Its names for what all are asked for, and whatever else keeps it from doing more.
        count: Finds the number of generated tokens in the end of a stream.
    """

    name: str
    command: tuple[str, ...]
    ready_path: str
    path: str
    sampling: dict[str, Any]
    count: re.Pattern[bytes]
    environment: tuple[tuple[str, str], ...] = ()

    def body(self, prompt: Sequence[int], seed: int) -> dict[str, Any]:
        """A streamed request to continue `prompt`."""
        return {**self.sampling, "prompt": list(prompt), "seed": seed, "stream": True}

    def count_tokens(self, tail: bytes) -> int:
        """How many tokens the server says that it generated."""
        found = self.count.findall(tail)
        if not found:
            raise SystemExit(f"{self.name}: the stream ended without its count of tokens: {tail[-300:]!r}")
        return int(found[-1])


def ours(folder: Path, dtype: str, *, device: str = "cpu", max_batch: int = MOST_CLIENTS) -> Contestant:
    """The inference service of this checkout."""
    return Contestant(
        name=f"ownlm {dtype}",
        command=(sys.executable, "-m", "services.inference"),
        environment=(
            ("OWNLM_MODEL_DIR", str(folder)),
            ("OWNLM_DTYPE", dtype),
            ("OWNLM_DEVICE", device),
            ("OWNLM_MAX_BATCH", str(max_batch)),
            ("OWNLM_LOG_LEVEL", "warning"),
        ),
        ready_path="/readyz",
        path="/generate",
        sampling={"max_tokens": NEW_TOKENS, "temperature": TEMPERATURE, "top_p": TOP_P, "ignore_eos": True},
        count=re.compile(rb'"completion_tokens":\s*(\d+)'),
    )


def ours_on_vllm(python: Path, folder: Path) -> Contestant:
    """The same service on vLLM's engine, in an environment that has it."""
    contestant = ours(folder, "float32")
    environment = dict(contestant.environment) | {"OWNLM_ENGINE": "vllm", "OMP_NUM_THREADS": str(os.cpu_count())}
    return replace(
        contestant,
        name="vLLM float32",
        command=(str(python), *contestant.command[1:]),
        environment=tuple(environment.items()),
    )


def llama_cpp(binary: Path, gguf: Path, kind: str, *, top_k: int) -> Contestant:
    """llama.cpp's own server; its sampler is fast only behind a top-k filter, which changes what is drawn."""
    return Contestant(
        name=f"llama.cpp {kind}" + (f", top-k {top_k}" if top_k else ""),
        command=(
            *(str(binary), "--model", str(gguf), "--host", "127.0.0.1", "--port", "{port}"),
            *("--ctx-size", str(CONTEXT * MOST_CLIENTS), "--parallel", str(MOST_CLIENTS)),
            *("--threads", str(os.cpu_count()), "--no-webui", "--log-disable"),
        ),
        ready_path="/health",
        path="/completion",
        sampling={
            "n_predict": NEW_TOKENS,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "top_k": top_k,
            "min_p": 0.0,
            "ignore_eos": True,
            "samplers": ["top_k", "top_p", "temperature"],
        },
        count=re.compile(rb'"predicted_n":\s*(\d+)'),
    )


def vllm(python: str, folder: Path, dtype: str, *, max_batch: int) -> Contestant:
    """The server of vLLM, on a third of the GPU's memory; it compiles and captures graphs at its start."""
    return Contestant(
        name=f"vLLM {dtype}",
        command=(
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "{port}"),
            *("--model", str(folder), "--served-model-name", "model", "--dtype", dtype),
            *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(max_batch), "--gpu-memory-utilization", "0.33"),
        ),
        ready_path="/v1/models",
        path="/v1/completions",
        sampling={
            "model": "model",
            "max_tokens": NEW_TOKENS,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        },
        count=re.compile(rb'"completion_tokens":\s*(\d+)'),
    )


class Server:
    """A contestant that runs, idle between its rounds."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self.port = free_port()
        environment = os.environ | dict(contestant.environment) | {"OWNLM_PORT": str(self.port)}
        command = [part.format(port=self.port) for part in contestant.command]
        self._process = subprocess.Popen(command, env=environment, cwd=_ROOT, stdout=subprocess.DEVNULL)
        self._wait()

    @property
    def memory_mb(self) -> float:
        """Resident memory of the server and of the processes that it started."""
        import psutil

        process = psutil.Process(self._process.pid)
        return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]) / 1e6

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        url = f"http://127.0.0.1:{self.port}{self.contestant.ready_path}"
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.contestant.name} ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    json.load(answer)
                    return
            except OSError:
                time.sleep(0.2)
        self.close()
        raise SystemExit(f"{self.contestant.name} was not ready after {_START_SECONDS:.0f} s")


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
