"""`training.json`: what it holds, how large it may be, and that the inference service takes it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.inference.training_record import TrainingRecord
from shared.lm.training_file import LARGEST_TRAINING_FILE, TRAINING_FILE
from trainer.checkpoints.run_state import RunState
from trainer.checkpoints.training_file import thinned, training_file
from trainer.runs.results import Curve, RunResults, read_run
from trainer.settings.train import TrainSettings
from trainer.tokens.dataset import open_training_data
from trainer.training.trainer import train


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(1, len(values) + 1, dtype=float), np.array(values))


@pytest.fixture
def written(settings: TrainSettings, change: Callable[..., TrainSettings]) -> Path:
    """The folder of a run of ten steps with evaluations and samples."""
    train(change(settings, eval_interval=5, sample_interval=4, log_interval=1))
    return settings.output


def test_the_finished_model_carries_its_training(written: Path, settings: TrainSettings) -> None:
    record = json.loads((written / "model" / TRAINING_FILE).read_text())
    TrainingRecord.model_validate_json(json.dumps(record))
    metrics = [json.loads(line) for line in (written / "metrics.jsonl").read_text().splitlines()]
    losses = {entry["step"]: entry["loss"] for entry in metrics if "loss" in entry}
    assert record["curves"]["loss"]["steps"] == list(losses) == list(range(1, 11))
    assert record["curves"]["loss"]["values"] == pytest.approx(list(losses.values()), rel=1e-4)
    assert record["curves"]["validation_loss"]["steps"] == [5, 10]
    assert [sample["step"] for sample in record["samples"]] == [4, 8]
    assert record["samples"][0]["text"].startswith(record["sample_prompt"])
    assert (record["steps"], record["tokens"]) == (10, metrics[-1]["tokens"])
    assert record["validation_loss"] == pytest.approx(metrics[-1]["validation_loss"], rel=1e-4)
    data = open_training_data(settings.data)
    assert record["tokenizer_fingerprint"] == data.tokenizer.fingerprint
    assert record["data"]["training"]["tokens"] == len(data.train)
    assert record["settings"]["learning_rate"] == settings.optimization.learning_rate


def test_it_names_no_folder_and_no_machine(written: Path, settings: TrainSettings) -> None:
    text = (written / "model" / TRAINING_FILE).read_text()
    [start] = json.loads((written / "run.json").read_text())["starts"]
    for private in (str(settings.output.parent), str(settings.data), start["machine"]["name"], start["command"]):
        assert private not in text
    [source] = json.loads(text)["data"]["training"]["sources"]
    assert "/" not in source["name"]


HOSTILE = "\x00\u202e<script>\ud800" + "💥" * 100_000


def test_it_stays_small_however_much_a_run_wrote(settings: TrainSettings) -> None:
    """A hundred thousand points a curve, texts of a hundred thousand characters, each of four bytes."""
    values = np.random.default_rng(0).random(100_000)
    steps = np.arange(1, 100_001, dtype=float) * 10_000_000
    names = ("loss", "validation_loss", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second")
    run = RunResults(
        folder=settings.output,
        name="run",
        settings={},
        record={},
        curves={name: Curve(steps, values) for name in names},
        samples=[(step, HOSTILE) for step in range(1000)],
        events=[(step, HOSTILE) for step in range(1000)],
    )
    content = training_file(run, settings, open_training_data(settings.data), RunState(step=1000))
    assert len(content) <= LARGEST_TRAINING_FILE
    record = TrainingRecord.model_validate_json(content)
    assert record.curves.loss is not None
    assert len(record.curves.loss.steps) >= 100
    assert record.samples[-1].step == 999  # the newest
    assert record.num_events == 1000


def test_a_run_without_metrics_or_record(settings: TrainSettings) -> None:
    """Their files were deleted while it ran."""
    settings.output.mkdir()
    content = training_file(read_run(settings.output), settings, open_training_data(settings.data), RunState())
    record = TrainingRecord.model_validate_json(content)
    assert (record.starts, record.machine, record.loss, record.samples) == (0, None, None, [])


@pytest.mark.parametrize("length", [0, 1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("most", [2, 3, 4, 5, 6, 50])
def test_thinning_keeps_the_ends_and_the_extremes(length: int, most: int) -> None:
    values = [float((i * 37) % 101) for i in range(length)]
    kept = thinned(curve(values), most)
    assert len(kept) <= max(most, 0)
    assert (np.diff(kept.steps) > 0).all()
    pairs: dict[float, Any] = dict(zip(range(1, length + 1), values, strict=True))
    assert all(pairs[step] == value for step, value in zip(kept.steps, kept.values, strict=True))
    if length:
        assert kept.steps[0] == 1
        assert kept.steps[-1] == length
    if length and most >= 5:
        assert (min(kept.values), max(kept.values)) == (min(values), max(values))


def test_thinning_keeps_gaps() -> None:
    values = [1.0] * 500 + [math.nan] * 20 + [2.0] * 479 + [math.inf]
    kept = thinned(curve(values), 50)
    assert len(kept) <= 50
    gaps = kept.steps[np.isnan(kept.values)]
    assert len(gaps)
    assert ((gaps >= 501) & (gaps <= 520)).all()
    assert kept.steps[-1] == 1000
