"""A random model whose guesses are far from even, and the command on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder
from trainer.console.progress import progress
from trainer.evaluation.tasks.evaluate import evaluate_tasks
from trainer.evaluation.tasks.tables import to_json
from trainer.settings.evaluation import EvaluateSettings, ScoringMachineSettings
from trainer.settings.tasks import TaskSettings

CONTEXT = 40
Evaluate = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_files(tokenizer_folder)


@pytest.fixture(scope="session")
def model_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "d_ff": 48}
    model = Transformer(ModelConfig(tokenizer.vocab_size, CONTEXT, **shape, initializer_range=0.3))
    folder = tmp_path_factory.mktemp("models") / "model"
    defaults = GenerationDefaults(eos_token_ids=(tokenizer.special_tokens["<|endoftext|>"],))
    save_model_folder(folder, model=model, tokenizer=tokenizer, generation=defaults, provenance={})
    return folder


@pytest.fixture
def evaluate(model_folder: Path) -> Evaluate:
    def evaluate(
        *paths: Path, model: Path = model_folder, batch_size: int | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        machine = ScoringMachineSettings(device="cpu", dtype="float32", batch_size=batch_size)
        settings = EvaluateSettings(machine=machine, questions=TaskSettings(tasks=paths, **options))
        with progress() as new_bar:
            tasks: list[dict[str, Any]] = to_json(evaluate_tasks(model, settings, new_bar))["tasks"]
        return tasks

    return evaluate
