"""A tiny model folder, and servers over real sockets: in a thread for apps, as processes for whole services."""

import codecs
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import structlog
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.bpe import Tokenizer, train_bpe
from shared.http.server.run import http_protocol
from shared.kernels import warm
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder

# The inference service with a model that does something before each of its steps, and before it is loaded.
_MODEL = """
import os, socket, sys, time
from services.inference.engine.worker import main, model_loader
from services.inference.engine.runner.cpu.runner import CpuRunner

class Paced(CpuRunner):
    def run(self, segments):
        {before_step}
        return super().run(segments)

model_loader.CpuRunner = Paced
{before_loading}
main.main(socket.socket(fileno=int(sys.argv[1])))
"""
_SERVICE = """
import sys
from functools import partial
from services.inference.generation import loading
from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.http import run

loading.ModelProcess = partial(loading.ModelProcess, command=(sys.executable, "-c", {model!r}))
run(create_app, InferenceSettings, "paced")
"""
_SLOW = _MODEL.format(before_step='time.sleep(float(os.environ["SECONDS"]))', before_loading="")
_STEPWISE = _MODEL.format(
    before_step="os.read(steps, 1)",
    before_loading="""
os.read(os.open(os.environ["STARTS"], os.O_RDONLY), 1)
steps = os.open(os.environ["STEPS"], os.O_RDONLY)
""",
)

TEXT = "Once upon a time there was a little fox. The fox had a red ball and a friend called Anna. " * 3


@pytest.fixture(scope="session", autouse=True)
def compiled_engine() -> None:
    """Compile the engine's kernels before the first test: services say on standard error that they compile."""
    warm.main(["services.inference.engine.runner.cpu.kernels", "services.inference.engine.sampler.kernels"])


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    """Servers in threads log when pytest no longer captures what they print."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT], 320, special_tokens=["<|endoftext|>", "<|e|>"]).tokenizer


@pytest.fixture(scope="session")
def model_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that says something different for each prompt; its context is 128 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, context_length=128, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=8, d_ff=64, tie_embeddings=False, initializer_range=0.5,
    )  # fmt: skip
    return save_random_model(folder, config, tokenizer)


def save_random_model(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> Path:
    eos = tokenizer.end_of_text_id
    assert eos is not None
    save_model_folder(
        folder,
        model=Transformer(config),
        tokenizer=tokenizer,
        generation=GenerationDefaults(eos_token_ids=(eos,)),
        provenance={},
    )
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[[FastAPI], str]]:
    """Serve apps on real sockets from threads; gives each one's address, and waits until it is ready."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: FastAPI, *, wait: bool = True, client_timeout: float = 600.0) -> str:
        protocol = http_protocol(client_timeout=client_timeout)
        config = uvicorn.Config(app, port=0, http=protocol, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        if wait:
            wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        return url

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join()


class Process:
    """A service as its own process, as a user starts it."""

    def __init__(self, *arguments: str, **settings: object) -> None:
        variables = {f"OWNLM_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OWNLM_PORT": "0", "OWNLM_LOG_FORMAT": "json", **variables}
        self.popen = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = ""

    def wait_listening(self) -> "Process":
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if (entry := json.loads(line)).get("event") == "listening":
                self.url = f"http://127.0.0.1:{entry['port']}"
                return self
        raise AssertionError(f"the service ended: {self.popen.communicate()}")

    def wait_ready(self) -> "Process":
        if not self.url:
            self.wait_listening()
        wait_until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200)
        return self

    def metric(self, name: str) -> float:
        return read_metric(self.url, name)

    def wait_exit(self, timeout: float = 240) -> tuple[int, str, str]:
        stdout, stderr = self.popen.communicate(timeout=timeout)
        return self.popen.returncode, stdout, stderr

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Start services as processes: `process("-m", "services.tokenizer", model_dir=...)`."""
    started: list[Process] = []

    def start(*arguments: str, **settings: object) -> Process:
        started.append(Process(*arguments, **settings))
        return started[-1]

    yield start
    for running in started:
        running.popen.kill()
        running.popen.communicate()


@pytest.fixture
def slow(process: Callable[..., Process], model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    """Start the inference service with a tiny model that takes `seconds` for each step."""

    def start(seconds: float = 0.1, **settings: object) -> Process:
        monkeypatch.setenv("SECONDS", str(seconds))
        return process(
            "-c", _SERVICE.format(model=_SLOW), **{"model_dir": model_dir, "threads": 1, **settings}
        ).wait_ready()

    return start


class Permits:
    """How often processes of a test may do something: each time they take a byte from a pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)

    def allow(self, times: int = 1) -> None:
        os.write(self._pipe, bytes(times))

    def close(self) -> None:
        os.close(self._pipe)


class Stepwise(Process):
    """The inference service with a tiny model that waits for permission to be loaded, and then before each step."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.starts, self.steps = Permits(folder / "starts"), Permits(folder / "steps")
        environment = {"STARTS": str(folder / "starts"), "STEPS": str(folder / "steps")}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            super().__init__("-c", _SERVICE.format(model=_STEPWISE), **settings)

    def wait_rows(self, *, running: int, waiting: int) -> None:
        """Wait for this many sequences, with a step for each time that fewer run."""
        wait_until(
            lambda: self.metric("ownlm_running_rows") + self.metric("ownlm_waiting_rows") == running + waiting,
        )
        while self.metric("ownlm_running_rows") < running:
            steps = self.metric("ownlm_engine_steps_total")
            self.steps.allow()
            wait_until(lambda steps=steps: self.metric("ownlm_engine_steps_total") > steps)
        assert (self.metric("ownlm_running_rows"), self.metric("ownlm_waiting_rows")) == (running, waiting)


@pytest.fixture
def stepwise(model_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Stepwise]]:
    """Start the inference service with a tiny model whose steps the test allows one by one."""
    started: list[Stepwise] = []

    def start(**settings: object) -> Stepwise:
        started.append(Stepwise(tmp_path, **{"model_dir": model_dir, "threads": 1, "device": "cpu", **settings}))
        started[-1].starts.allow()
        started[-1].wait_ready()
        return started[-1]

    yield start
    for service in started:
        service.popen.kill()
        service.popen.communicate()
        service.starts.close()
        service.steps.close()


@contextlib.contextmanager
def ready_client(app: FastAPI) -> Iterator[TestClient]:
    """A client of an app in this process, once its model is loaded."""
    with TestClient(app, base_url="http://localhost") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def wait_until(condition: Callable[[], bool], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def read_metric(url: str, name: str) -> float:
    """The value of one sample, `name` with its labels, on a server's metrics page."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def cut_off(response: httpx.Response) -> bytes:
    """What comes of a stream that ends before it is complete, which a reader that knows nothing of errors sees too."""
    parts: list[bytes] = []
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        parts.extend(response.iter_raw())
    return b"".join(parts)


def character_places(data: bytes) -> tuple[str, list[int]]:
    """Bytes as text, and for each byte the character that it is of, by Python's decoder of a whole text."""
    cuts: list[tuple[int, int]] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        cuts.append((error.start, error.end))
        return "\ufffd", error.end

    codecs.register_error("note", note)
    text = data.decode(errors="note")
    places: list[int] = []
    lengths = dict(cuts)
    for place, character in enumerate(text):
        begin = len(places)
        size = lengths[begin] - begin if begin in lengths else len(character.encode())
        places += [place] * size
    return text, places
