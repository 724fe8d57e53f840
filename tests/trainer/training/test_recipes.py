"""Whole runs with each recipe."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.lm import load_model_folder
from shared.lm.transformer import Block
from shared.system.checksums import write_checksums
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
    "ReLU squared, capped logits, value residuals": {
        "activation": "relu2",
        "logit_soft_cap": 15.0,
        "value_residual": True,
    },
    "zero outputs, separate rates, muon": {
        "zero_outputs": "all",
        "initialization": "normal",
        "tie_embeddings": False,
        "embedding_learning_rate": 3e-2,
        "head_learning_rate": 5e-3,
        "optimizer": "muon",
    },
    "checkpointing, muon": {"checkpoint_activations": True, "optimizer": "muon"},
    "batch and context schedules": {"batch_schedule": "2:3", "context_schedule": "8:6"},
    "schedules, documents apart, dropout": {
        "context_schedule": "8:7",
        "batch_schedule": "3:6",
        "document_mask": True,
        "dropout": 0.2,
        "batch_size": 2,
        "total_batch_size": 4,
    },
}
GROWING = {"batch_schedule": "1:2,2-4:7", "context_schedule": "4:3,5:6,8:8"}
"""Eight shapes in ten steps, for each of which torch.compile may compile again."""

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


@pytest.mark.parametrize("recipe", [*RECIPES.values(), GROWING], ids=[*RECIPES, "growing batch and context"])
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
    steps = 9 if "context_schedule" in recipe else 3  # past its last stage
    plain = change(settings, **recipe, max_steps=steps, warmup_steps=1, checkpoint_interval=0)
    compiled = change(plain, compile=True, output=settings.output.with_name("compiled"))
    names = load_model_folder(train(plain), research=True).model.state_dict().keys()
    assert load_model_folder(train(compiled), research=True).model.state_dict().keys() == names
    if "dropout" not in recipe:
        assert records(compiled, "loss") == pytest.approx(records(plain, "loss"), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("dropout, constant", "float32"),
        ("schedules, documents apart, dropout", "bfloat16"),
        ("ReLU squared, capped logits, value residuals", "float32"),
    ],
)
def test_checkpointing_changes_no_bit(settings: TrainSettings, change: Change, name: str, dtype: str) -> None:
    """Although every block is computed a second time; a run may go on with it or without."""
    plain = change(settings, **RECIPES[name], dtype=dtype)
    thrifty = change(plain, checkpoint_activations=True, output=settings.output.with_name("thrifty"))
    counts = []
    for run in (plain, thrifty):
        with pytest.MonkeyPatch.context() as patch:
            forward, calls = Block.forward, []
            patch.setattr(
                Block, "forward", lambda *a, f=forward, c=calls: (c.append(torch.is_grad_enabled()), f(*a))[1]
            )
            train(run)
        counts.append(sum(calls))
    assert counts[1] == 2 * counts[0] > 0
    assert records(thrifty, "loss") == records(plain, "loss")
    shutil.rmtree(thrifty.output / "checkpoints" / "step-00000010")
    models = [plain.output / "model", train(change(thrifty, resume=True, checkpoint_activations=False))]
    one, other = (load_model_folder(model, research=True).model.state_dict() for model in models)
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_separate_rates_keep_their_ratio_through_the_schedule(settings: TrainSettings, change: Change) -> None:
    """The rate of every group at every step, seen by the optimizer; the run's record has the others' rate."""
    own = {"embedding_learning_rate": 4e-2, "head_learning_rate": 2.5e-3, "tie_embeddings": False}
    run = change(settings, **own, max_steps=6)
    seen: list[list[float]] = []

    class Noting(torch.optim.AdamW):
        def step(self, *arguments: Any, **options: Any) -> Any:
            seen.append([group["lr"] for group in self.param_groups])
            return super().step(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", Noting)
        train(run)
    usual = records(run, "learning_rate")
    assert seen == [pytest.approx([rate, rate, 4 * rate, rate / 4]) for rate in usual]


def test_tokens_and_shapes_of_a_scheduled_run_are_counted_right(
    settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 1, 1, 2, 2 and 4 windows of 8, 8, 8, 16, 16, ... tokens: in metrics, run.json, model folder and log."""
    import trainer.training.trainer as module

    real = module.training_steps
    monkeypatch.setattr(
        module, "training_steps", lambda *a, **o: (replace(step, seconds=2.0) for step in real(*a, **o))
    )
    run = change(settings, batch_schedule="1:2,2:4", context_schedule="8:3")
    with caplog.at_level("INFO"):
        train(run)
    steps = [8, 8, 16, 32, *[64] * 6]
    assert records(run, "tokens") == [*(sum(steps[: n + 1]) for n in range(10)), sum(steps)]  # and the evaluation's
    assert json.loads((run.output / "run.json").read_text())["tokens"] == sum(steps)
    provenance = json.loads((run.output / "model" / "ownlm.json").read_text())["training"]
    assert provenance["tokens"] == sum(steps)
    plan = next(message for message in caplog.messages if message.startswith("plan:"))
    assert "10 steps of 8 to 64 tokens" in plan
    (schedule,) = (message for message in caplog.messages if message.startswith("schedule:"))
    assert "1 to 4 windows of 8 to 16 tokens per step, full from step 4 on" in schedule
    assert records(run, "tokens_per_second") == [tokens / 2 for tokens in steps]


def test_a_schedule_sees_more_steps_of_the_same_order(settings: TrainSettings, change: Change) -> None:
    """A batch of one window in all steps is the plain run of that batch, whichever option says so."""
    plain = change(settings, output=settings.output.with_name("plain"), batch_size=1)
    staged = change(settings, batch_schedule="1:9")
    train(plain)
    train(staged)
    assert records(staged, "loss")[:9] == records(plain, "loss")[:9]
    assert records(staged, "loss")[9] != records(plain, "loss")[9]


def test_a_rollback_leaves_out_batches_with_their_shapes(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sixth step fails once: the run returns to the fifth and goes on with the seventh batch of the schedule."""
    calls: list[float] = []

    def fails_once(loss: float, *_: Any) -> str | None:
        calls.append(loss)
        return "loss nan" if len(calls) == 6 else None

    monkeypatch.setattr("trainer.training.loop.divergence", fails_once)
    run = change(settings, batch_schedule="2:4,3:8", context_schedule="8:6", on_divergence="rollback")
    train(run)
    batches = [2 * 8] * 4 + [3 * 8] + [3 * 16] * 2 + [4 * 16] * 3
    assert records(run, "tokens")[-1] == sum(batches)
    assert records(run, "tokens")[4:7] == [88, 88, 136]  # the second is the record of the rollback
    resumed = without_last_steps(run, change)
    train(resumed)
    assert records(resumed, "loss") == records(run, "loss")


def test_a_checkpoint_of_an_earlier_release_resumes_with_its_tokens(settings: TrainSettings, change: Change) -> None:
    """It knows neither the count of tokens nor the later settings, which then were as their defaults are."""
    train(settings)
    resumed = without_last_steps(settings, change)
    path = resumed.output / "checkpoints" / "step-00000005"
    state = torch.load(path / "training_state.pt", weights_only=True)
    del state["run"]["tokens"]
    for name in ("batch_schedule", "context_schedule", "logit_soft_cap", "value_residual", "zero_outputs"):
        del state["settings"][name]
    torch.save(state, path / "training_state.pt")
    (path / "checksums.json").unlink()
    write_checksums(path)
    train(resumed)
    assert records(resumed, "tokens") == records(settings, "tokens")
    assert records(resumed, "loss") == records(settings, "loss")


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
