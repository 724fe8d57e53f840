"""A service whose model writes what a test lets it write, token by token."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from services.inference.app import create_app
from services.inference.engine.client.client import EngineClient
from services.inference.engine.runner.protocol import Segment, StepResult
from services.inference.engine.types import SampledToken, SequenceRequest, TokenLogprobs
from services.inference.generation.loading import ServedModel
from services.inference.settings import InferenceSettings
from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.lm import GenerationDefaults
from tests.services.inference.conftest import CONTEXT_LENGTH, EOS, ScriptedRunner, ThreadWorker, _config

CONTROL = "<|e|>"


def tokenizer_of(pieces: Sequence[str]) -> Tokenizer:
    """The 256 bytes, these pieces, which no merge makes, and two special tokens."""
    tokens = dict(enumerate([bytes([byte]) for byte in range(256)] + [piece.encode() for piece in pieces]))
    added = (AddedToken(len(tokens), EOS), AddedToken(len(tokens) + 1, CONTROL))
    return Tokenizer(Vocabulary(tokens=tokens, merges=(), added=added, pattern=PATTERNS["gpt2"], eos=EOS))


class ScriptedModel(ScriptedRunner):
    """Writes `script` after every prompt; each token has the next of the vocabulary as its only rival."""

    def __init__(self, tokenizer: Tokenizer, script: Sequence[int], num_slots: int) -> None:
        super().__init__(tokenizer, {}, num_slots=num_slots)
        self._script = list(script)
        self._size = tokenizer.vocab_size
        self.permits = threading.Semaphore(0)
        self.is_stepwise = False

    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        self._slots[slot] = (self._script, request.num_given + len(output))

    def run(self, segments: Sequence[Segment]) -> StepResult:
        if self.is_stepwise:
            self.permits.acquire()
        result = super().run(segments)
        sampled = [self._scored(token.slot, token.token) for token in result.sampled_tokens]
        scores = [[TokenLogprobs(-0.5, ((target, -0.5),)) for target in segment.targets] for segment in segments]
        return StepResult(sampled, scores)

    def hurry(self) -> None:
        """Run freely from now on."""
        self.is_stepwise = False
        self.permits.release(1000)

    def _scored(self, slot: int, token: int) -> SampledToken:
        rival = (token + 1) % self._size
        return SampledToken(slot, token, TokenLogprobs(-0.25, ((token, -0.25), (rival, -1.75))))


def scripted_app(
    tokenizer: Tokenizer, script: Sequence[int], may_load: threading.Event | None = None, **settings: object
) -> tuple[FastAPI, ScriptedModel]:
    """An app that serves a scripted model, and the model."""
    values = InferenceSettings(model_dir=Path("scripted"), **{"max_batch": 8, **settings})  # type: ignore[arg-type]
    model = ScriptedModel(tokenizer, script, values.max_batch)

    def launch() -> ThreadWorker:
        return ThreadWorker(model, 256, model.may_start)

    def load(_settings: InferenceSettings) -> ServedModel:
        if may_load:
            may_load.wait()
        worker = launch()
        return ServedModel(
            tokenizer=tokenizer,
            defaults=GenerationDefaults(eos_token_ids=(tokenizer.special_tokens[EOS],)),
            config=_config(tokenizer.vocab_size),
            engine=EngineClient(worker, worker.wait_ready(), launch, max_queue=values.max_queue),
            context_length=CONTEXT_LENGTH,
            device="cpu",
            dtype="float32",
        )

    return create_app(values, load), model


@pytest.fixture
def scripted_service(serve: Callable[..., str]) -> Iterator[Callable[..., tuple[str, ScriptedModel]]]:
    """Serve a scripted model: its address, and the model. At the end it runs freely, so that the service can end."""
    models: list[ScriptedModel] = []

    def start(*arguments: Any, wait: bool = True, **settings: object) -> tuple[str, ScriptedModel]:
        app, model = scripted_app(*arguments, **settings)
        models.append(model)
        return serve(app, wait=wait), model

    yield start
    for model in models:
        model.hurry()
