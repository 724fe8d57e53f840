"""Whole runs with each recipe."""

import json
import logging
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shared.lm import load_model_folder
from trainer.recipes.options import parse_train_settings
from trainer.recipes.presets import PRESETS
from trainer.settings.model import PresetName
from trainer.settings.train import TrainSettings, to_table
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]

RECIPES: dict[str, dict[str, Any]] = {
    "muon, wsd": {"optimizer": "muon", "schedule": "wsd", "decay_share": 0.5},
    "dropout, constant": {"dropout": 0.3, "schedule": "constant"},
    "documents apart, z-loss": {"document_mask": True, "z_loss": 1e-3},
    "sgd, uniform": {"optimizer": "sgd", "learning_rate": 1.0, "data_order": "uniform", "warmup_from_zero": True},
    "sgd with momentum": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.3, "initialization": "xavier"},
    "no norm, no positions": {"norm": "none", "position": "none"},
    "post-norm, SiLU, query/key norm": {"norm": "post", "activation": "silu", "qk_norm": True},
}
recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def records(settings: TrainSettings, key: str) -> list[float]:
    lines = map(json.loads, (settings.output / "metrics.jsonl").read_text().splitlines())
    return [record[key] for record in lines if key in record]


def without_last_steps(settings: TrainSettings, change: Change) -> TrainSettings:
    """A copy of a finished run of ten steps, as it was after five."""
    copy = change(settings, output=settings.output.with_name("resumed"), resume=True)
    shutil.copytree(settings.output, copy.output)
    shutil.rmtree(copy.output / "checkpoints" / "step-00000010")
    shutil.rmtree(copy.output / "model")
    return copy


@recipes
def test_it_learns_and_resumes_to_the_bit(settings: TrainSettings, change: Change, recipe: dict[str, Any]) -> None:
    """B84, B85: with the optimizer's state, and that of the generator of dropout."""
    whole = change(settings, **recipe)
    weights = load_model_folder(train(whole), research=True).model.state_dict()
    losses = records(whole, "loss")
    assert losses[-1] < losses[0]
    resumed = without_last_steps(whole, change)
    torch.manual_seed(99)
    others = load_model_folder(train(resumed), research=True).model.state_dict()
    assert records(resumed, "loss") == losses
    for name, weight in weights.items():
        assert torch.equal(weight, others[name]), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch itself
@recipes
def test_it_compiles(settings: TrainSettings, change: Change, recipe: dict[str, Any]) -> None:
    """B80: the same losses up to rounding, but for dropout, and clean names."""
    plain = change(settings, **recipe, max_steps=3, warmup_steps=1, checkpoint_interval=0)
    compiled = change(plain, compile=True, output=settings.output.with_name("compiled"))
    names = load_model_folder(train(plain), research=True).model.state_dict().keys()
    assert load_model_folder(train(compiled), research=True).model.state_dict().keys() == names
    if "dropout" not in recipe:
        assert records(compiled, "loss") == pytest.approx(records(plain, "loss"), rel=1e-4)


def test_the_rate_follows_the_schedule(settings: TrainSettings, change: Change) -> None:
    run = change(settings, schedule="wsd", decay_share=0.5, decay_shape="linear", min_learning_rate_ratio=0.0)
    train(run)
    peak = run.optimization.learning_rate
    shares = [1 / 3, 2 / 3, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]
    assert records(run, "learning_rate") == pytest.approx([peak * share for share in shares])


def test_z_loss_changes_the_gradient_and_not_the_reported_loss(settings: TrainSettings, change: Change) -> None:
    """Its formula is tested with the loss itself; here it is at the weights of before the first step."""
    without = change(settings, output=settings.output.with_name("without"), max_steps=2, warmup_steps=1)
    weighted = change(settings, max_steps=2, warmup_steps=1, z_loss=0.1)
    train(without)
    train(weighted)
    assert records(weighted, "loss")[0] == records(without, "loss")[0]
    assert records(weighted, "grad_norm")[0] != records(without, "grad_norm")[0]
    assert records(weighted, "loss")[1] != records(without, "loss")[1]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains(settings: TrainSettings, preset: PresetName) -> None:
    """With its recipe and its proportions, at a small width and few layers."""
    small = {"d_model": 64, "num_layers": 2, "d_ff": 96, "num_heads": 4, "num_kv_heads": 2, "context_length": 16}
    table = to_table(settings.watch) | to_table(settings.machine) | small
    run = {"data": str(settings.data), "output": str(settings.output), "max_steps": 20, "total_batch_size": 8}
    reduced = parse_train_settings(table | run | {"preset": preset, "learning_rate": 1e-2}, source="test")
    train(reduced)
    losses = records(reduced, "loss")
    assert losses[-1] < losses[0]


def test_a_uniform_order_is_reported(settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        train(change(settings, data_order="uniform", max_steps=2, warmup_steps=0))
    assert "data order: uniform, with replacement: about" in caplog.text
    assert json.loads((settings.output / "run.json").read_text())["config"]["data_order"] == "uniform"
