"""Runs that start from a model folder: its logits, its weights, its files; transformers is the oracle."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from shared.lm import load_model_folder, read_config
from tests.shared.lm.variants import VARIANTS, WrittenVariant
from trainer.components.loss import IGNORED
from trainer.components.parent import starting_from
from trainer.console.progress import progress
from trainer.evaluation.evaluate import evaluate_inputs
from trainer.evaluation.scoring import score_tokens
from trainer.evaluation.windows import Window
from trainer.settings.evaluation import EvaluateSettings, ScoringMachineSettings, ScoringSettings
from trainer.settings.train import TrainSettings
from trainer.training.run import prepare_run
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]

FAST = ("qwen2", "mistral", "llama, biases, tied", "qwen3, biases", "smollm2", "linear, older", "llama3, older")
ROWS = 384  # more than the tokenizer's 290: padding


def write(name: str, folder: Path, tokenizer: Path, rows: int = ROWS) -> WrittenVariant:
    """A model that transformers writes, with the tokenizer of the token files."""
    variant = VARIANTS[name]
    written = dataclasses.replace(variant, changes={**variant.changes, "vocab_size": rows}).write(folder)
    for file in tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return written


@pytest.fixture(
    scope="module",
    params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def written(
    request: pytest.FixtureRequest, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> WrittenVariant:
    return write(request.param, tmp_path_factory.mktemp("parents") / "parent", tokenizer_folder)


def stored(folder: Path) -> dict[str, Tensor]:
    """The weights as they are in the files."""
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def assert_bitwise_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert weight.dtype == expected[name].dtype, name
        assert torch.equal(weight.view(torch.uint8), expected[name].view(torch.uint8)), name


def records(settings: TrainSettings) -> list[dict[str, float]]:
    return [json.loads(line) for line in (settings.output / "metrics.jsonl").read_text().splitlines()]


def test_a_run_begins_with_the_folder(written: WrittenVariant, settings: TrainSettings, change: Change) -> None:
    """Logits of transformers, losses of `evaluate`; a rate of 0 leaves all as it was, for transformers too."""
    before = digests(written.folder)
    settings = change(starting_from(settings, written.folder), learning_rate=0.0, max_steps=3, eval_interval=5)
    settings = change(settings, context_length=16, batch_size=2, checkpoint_interval=0, eval_tokens=0)
    run = prepare_run(settings)
    with torch.no_grad():
        torch.testing.assert_close(run.model(written.prompt)[0], written.logits, rtol=0, atol=1e-4)
    inputs, targets = run.windows.batch(0, 2)

    train(settings)
    pairs = zip(inputs.numpy(), (target[target != IGNORED].numpy() for target in targets), strict=True)
    scored = [Window(np.append(row[: len(target)], target[-1]), len(target)) for row, target in pairs]
    folder = load_model_folder(written.folder, dtype=torch.float32)
    start, first, *_ = records(settings)
    assert first["loss"] == pytest.approx(score_tokens(folder.model, scored, device=run.device).nats.mean(), abs=1e-5)
    evaluation = EvaluateSettings(
        scoring=ScoringSettings(documents="packed", window=16), machine=ScoringMachineSettings(device="cpu")
    )
    with progress() as new_bar:
        report = evaluate_inputs(written.folder, [settings.data / "val.bin"], evaluation, new_bar)
    assert start["step"] == 0
    assert start["validation_loss"] == pytest.approx(report.total.evaluation.loss, abs=1e-5)

    model = settings.output / "model"
    expected = stored(written.folder)
    assert_bitwise_equal(stored(model), expected)
    assert read_config(model) == read_config(written.folder)
    peer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(peer(written.prompt).logits[0], written.logits, rtol=0, atol=1e-4)
    parent = json.loads((model / "ownlm.json").read_text())["training"]["parent"]
    assert parent["name"] == "parent"
    assert parent["sha256"] == {name: digest for name, digest in before.items() if name.endswith(".safetensors")}
    assert digests(written.folder) == before
