"""Samples and the loss by position, from the models of a real run."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.lm import load_model_folder
from trainer.report.models import examine, position_loss
from trainer.runs.results import read_run
from trainer.settings.train import TrainSettings
from trainer.tokens.token_file import TokenFile
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]


@pytest.fixture
def run(settings: TrainSettings, change: Change) -> Path:
    """Ten steps, with checkpoints at the steps 5 and 10 and samples of the trainer at 4 and 8."""
    watched = change(settings, sample_interval=4)
    train(watched)
    return watched.output


def test_a_checkpoint_writes_what_the_trainer_had_it_write(
    settings: TrainSettings, change: Change, tmp_path: Path
) -> None:
    """The sample that the report draws from the checkpoint of step 5 is the one that training logged there."""
    watched = change(settings, sample_interval=5)
    train(watched)
    kept = read_run(watched.output)
    assert [step for step, _ in kept.samples] == [5]
    blind = watched.output.with_name("blind")
    train(change(watched, output=blind, sample_interval=0))
    found = examine(read_run(blind), prompt=None, device="cpu")
    assert [step for step, _ in found.samples] == [5, 10]
    assert found.samples[0] == kept.samples[0]
    assert found.notes == []


@pytest.mark.case("D45")
def test_what_is_no_checkpoint_is_not_asked(run: Path) -> None:
    """Copies under names of their own, with digits that `int` does not take for one, and a file."""
    checkpoints = run / "checkpoints"
    for name in ("step-²", "step-99", "step-00000010_backup"):
        shutil.copytree(checkpoints / "step-00000005", checkpoints / name)
    (checkpoints / "step-00000400").write_text("")
    found = examine(read_run(run), prompt=None, device="cpu")
    assert [step for step, _ in found.samples] == [5, 10]
    assert found.notes == []


def test_steps_that_have_a_sample_are_not_drawn_again_unless_the_prompt_is_new(run: Path) -> None:
    results = read_run(run)
    assert [step for step, _ in examine(results, prompt=None, device="cpu").samples] == [5, 10]
    samples = examine(results, prompt="a dog", device="cpu").samples
    assert [step for step, _ in samples] == [5, 10]
    assert all(text.startswith("a dog") for _, text in samples)


def test_loss_by_position_is_that_of_one_token_after_another(run: Path, token_folder: Path) -> None:
    """Against scoring each window, and each document, by itself in float64."""
    folder = load_model_folder(run / "model")
    found = position_loss(folder, token_folder)
    assert found is not None
    file = TokenFile.open(token_folder, "val")
    tokens, end = file.tokens.astype(np.int64), file.manifest.end_of_text_id
    model = folder.model.double()

    def losses(ids: list[int]) -> list[float]:
        with torch.no_grad():
            log = torch.log_softmax(model(torch.tensor([ids[:-1]]))[0], -1)
        return [-log[place, target].item() for place, target in enumerate(ids[1:])]

    windows = [losses(tokens[start : start + 17].tolist()) for start in range(0, len(tokens) - 1, 16)]
    for position in (1, 2, 3, 4):
        here = [window[position - 1] for window in windows if len(window) >= position]
        place = found.window.steps.tolist().index(position)
        assert found.window.values[place] == pytest.approx(sum(here) / len(here), rel=1e-5)
    documents, current = [], [end]
    for token in tokens.tolist():
        current.append(token)
        if token == end:
            documents.append(losses(current[:17]))
            current = [end]
    for position in (1, 2, 3, 4):
        here = [document[position - 1] for document in documents if len(document) >= position]
        place = found.document.steps.tolist().index(position)
        assert found.document.values[place] == pytest.approx(sum(here) / len(here), rel=1e-5)
    assert all(math.isfinite(value) for value in found.document.values)


@pytest.mark.case("D52")
def test_a_prompt_that_does_not_fit_costs_the_samples_alone(run: Path) -> None:
    found = examine(read_run(run), prompt="the cat " * 16, device="cpu")
    assert found.samples == []
    assert [note.partition(":")[0] for note in found.notes] == ["step 5", "step 10"]
    assert found.positions is not None


def test_what_is_gone_or_damaged_is_a_note(run: Path, tmp_path: Path) -> None:
    (run / "train.toml").write_text((run / "train.toml").read_text().replace("data = ", 'data = "/gone"\n#'))
    (run / "checkpoints" / "step-00000005" / "config.json").write_text("{")
    found = examine(read_run(run), prompt=None, device="cpu")
    assert [step for step, _ in found.samples] == [10]
    assert found.positions is None
    assert [note.partition(":")[0] for note in found.notes] == ["step 5", "step 10"]
    assert "/gone" in found.notes[1]
    (tmp_path / "none").mkdir()
    assert examine(read_run(tmp_path / "none"), prompt=None, device="cpu").notes == [
        "no checkpoint or model to draw samples from"
    ]
