"""A model that generates the tokens of a test's script, behind the real engine and the real app."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from services.inference.app import create_app
from services.inference.engine.client.client import EngineClient
from services.inference.engine.ipc import EngineConfig, Ready, encode, receive
from services.inference.engine.runner.protocol import Runner, Segment, StepResult
from services.inference.engine.types import BLOCK_SIZE, SampledToken, SequenceRequest
from services.inference.engine.worker.main import serve
from services.inference.engine.worker.model_loader import LoadedModel
from services.inference.generation.loading import ServedModel
from services.inference.settings import InferenceSettings
from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.lm import GenerationDefaults, ModelConfig
from tests.services.conftest import read_metric, ready_client

PIECES = ["DEF", "HI", " a;\n", "<|", "im", "_end|>", " a", "\r\n", "\n\ndata: x", "a\vb", "\u2028", "\x85", "é"]
EOS = "<|endoftext|>"
CONTROL = "<|e|>"
CONTEXT_LENGTH = 10_000


class ScriptedRunner:
    """A `Runner` that answers each prompt with the tokens of its script; the last one is repeated for ever.

    `scripts` maps a prompt's text to pieces; a piece is a token's text, or an id. Every step takes `seconds`.
    """

    max_step_tokens = 4096
    block_memory = None

    def __init__(self, tokenizer: Tokenizer, scripts: dict[str, Sequence[str | int]], *, num_slots: int = 4) -> None:
        self.num_slots = num_slots
        self.num_blocks = num_slots * -(-CONTEXT_LENGTH // BLOCK_SIZE)
        self.seconds = 0.0
        self.failures: list[BaseException] = []  # raised by the next steps
        self.steps: list[list[Segment]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.num_begun = 0  # steps, those that wait for the gate too
        self.may_start = threading.Event()  # a process is ready no sooner
        self.may_start.set()
        self._slots: dict[int, tuple[list[int], int]] = {}  # each slot's script and how far it has come
        self._scripts = {
            tuple(tokenizer.encode(prompt)): [token_id(tokenizer, piece) for piece in script]
            for prompt, script in scripts.items()
        }

    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        self._slots[slot] = (self._scripts.get(request.prompt_ids, [ord("x")]), len(output))

    def close_slot(self, slot: int) -> None:
        del self._slots[slot]

    def copy_block(self, source: int, target: int) -> None:
        pass

    def run(self, segments: Sequence[Segment]) -> StepResult:
        self.num_begun += 1
        self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        time.sleep(self.seconds)
        self.steps.append(list(segments))
        return StepResult(
            [SampledToken(slot, self._next(slot)) for segment in segments for slot in segment.sample_slots],
            [[] for _ in segments],
        )

    def _next(self, slot: int) -> int:
        script, step = self._slots[slot]
        self._slots[slot] = (script, step + 1)
        return script[min(step, len(script) - 1)]


class ThreadWorker:
    """Runs the engine process as a thread of this one, on a runner that a test has in its hands."""

    pid = None

    def __init__(self, runner: Runner, prefill_tokens: int = 256, may_start: threading.Event | None = None) -> None:
        self._may_start = may_start
        self.connection, theirs = socket.socketpair()
        self.connection.sendall(encode(EngineConfig(Path("scripted"))))
        ready = Ready("scripted", "cpu", "float32", CONTEXT_LENGTH, runner.num_blocks, runner.num_slots)
        self.thread = threading.Thread(
            target=self._run, args=(theirs, LoadedModel(runner, ready, prefill_tokens, BLOCK_SIZE))
        )
        self.thread.start()

    def _run(self, connection: socket.socket, model: LoadedModel) -> None:
        with connection:
            serve(connection, lambda config: model)
            connection.shutdown(socket.SHUT_RDWR)

    def wait_ready(self) -> Ready:
        if self._may_start:
            self._may_start.wait()
        return receive(self.connection)

    def end(self) -> str:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.thread.join()
        return "with exit code 1"

    def close(self) -> None:
        self.end()


def token_id(tokenizer: Tokenizer, piece: str | int) -> int:
    """The one token that is spelled so."""
    if isinstance(piece, int):
        return piece
    if piece in tokenizer.special_tokens:
        return tokenizer.special_tokens[piece]
    return next(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == piece.encode())


@pytest.fixture(scope="session")
def pieces_tokenizer() -> Tokenizer:
    """Bytes, the tokens of `PIECES` that no merge makes, and two control tokens."""
    tokens = dict(enumerate([bytes([byte]) for byte in range(256)] + [piece.encode() for piece in PIECES]))
    added = (AddedToken(len(tokens), EOS), AddedToken(len(tokens) + 1, CONTROL))
    return Tokenizer(Vocabulary(tokens=tokens, merges=(), added=added, pattern=PATTERNS["gpt2"], eos=EOS))


@pytest.fixture
def scripted(pieces_tokenizer: Tokenizer) -> Callable[..., tuple[FastAPI, ScriptedRunner]]:
    """Build an app on a `ScriptedRunner`: `scripted({"prompt": ["piece", ...]}, max_batch=4, ...)`."""

    def build(
        scripts: dict[str, Sequence[str | int]], may_load: threading.Event | None = None, **settings: Any
    ) -> tuple[FastAPI, ScriptedRunner]:
        values = InferenceSettings(model_dir=Path("scripted"), **{"max_batch": 4, **settings})
        runner = ScriptedRunner(pieces_tokenizer, scripts, num_slots=values.max_batch)

        def launch() -> ThreadWorker:
            return ThreadWorker(runner, values.prefill_tokens or 256, runner.may_start)

        def load(settings: InferenceSettings) -> ServedModel:
            if may_load:
                may_load.wait()
            worker = launch()
            eos = pieces_tokenizer.special_tokens[EOS]
            return ServedModel(
                tokenizer=pieces_tokenizer,
                defaults=GenerationDefaults(eos_token_ids=(eos,)),
                config=_config(pieces_tokenizer.vocab_size),
                engine=EngineClient(
                    worker,
                    worker.wait_ready(),
                    launch,
                    max_queue=values.max_queue,
                    queue_timeout=values.queue_timeout or None,
                    request_timeout=values.request_timeout or None,
                ),
                context_length=CONTEXT_LENGTH,
                device="cpu",
                dtype="float32",
            )

        return create_app(values, load), runner

    return build


@pytest.fixture(scope="module")
def client(model_dir: Path) -> Iterator[TestClient]:
    """The app on the tiny random model."""
    with ready_client(create_app(InferenceSettings(model_dir=model_dir, threads=1, prefill_tokens=16))) as client:
        yield client


def _config(vocab_size: int) -> ModelConfig:
    return ModelConfig(
        vocab_size, CONTEXT_LENGTH, d_model=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, d_ff=8
    )


@pytest.fixture
def metric() -> Callable[[str, str], float]:
    """See `read_metric`."""
    return read_metric
