"""Small texts, token files and settings, on which a run takes a second."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bpe import Tokenizer
from trainer.settings.encode import EncodeSettings
from trainer.settings.train import (
    CheckpointSettings,
    MachineSettings,
    ModelSettings,
    OptimizationSettings,
    TrainSettings,
    WatchSettings,
)
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """These models are too small to gain from more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hundred documents of a toy language."""
    draw = random.Random(0)
    words = ["red", "blue", "cat", "dog", "sees", "likes", "the", "a", "naïve", "old"]
    documents = [" ".join(draw.choices(words, k=12)) + ".\n<|endoftext|>\n" for _ in range(400)]
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text("".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer trained on them."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([text_file], folder, VocabSettings(vocab_size=290))
    return folder


@pytest.fixture(scope="session")
def token_folder(text_file: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their tokens, in train and val."""
    folder = tmp_path_factory.mktemp("tokens")
    encode_files([text_file], Tokenizer.from_files(tokenizer_folder), folder, EncodeSettings(val_fraction=0.1))
    return folder


@pytest.fixture
def settings(token_folder: Path, tmp_path: Path) -> TrainSettings:
    """A run of ten steps."""
    return TrainSettings(
        data=token_folder,
        output=tmp_path / "run",
        model=ModelSettings(d_model=32, num_layers=2, num_heads=2, num_kv_heads=1, d_ff=48, context_length=16),
        optimization=OptimizationSettings(max_steps=10, batch_size=4, learning_rate=1e-2, warmup_steps=2),
        watch=WatchSettings(
            log_interval=1, eval_interval=0, eval_tokens=200, sample_interval=0, sample_prompt="the", sample_tokens=5
        ),
        checkpoints=CheckpointSettings(checkpoint_interval=5, keep=0),
        machine=MachineSettings(device="cpu"),
    )


@pytest.fixture(scope="session")
def change() -> Callable[..., TrainSettings]:
    """Settings with some fields changed, whichever group they are in."""

    def changed(settings: Any, **values: Any) -> Any:
        own = {field.name for field in dataclasses.fields(settings)}
        new = {name: value for name, value in values.items() if name in own}
        for name in own - set(new):
            if dataclasses.is_dataclass(getattr(settings, name)):
                new[name] = changed(getattr(settings, name), **values)
        return dataclasses.replace(settings, **new)

    return changed
