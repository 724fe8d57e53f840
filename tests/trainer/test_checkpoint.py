import json
import logging
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from shared.lm import load_model_folder
from trainer.checkpoint import STATE_FILE, list_checkpoints, load_newest_checkpoint
from trainer.checksums import write_checksums
from trainer.errors import TrainerError
from trainer.settings import TrainSettings
from trainer.training import Trainer


@pytest.fixture
def checkpoints(settings: TrainSettings) -> Path:
    """Those of a finished run of ten steps, at 5 and 10."""
    Trainer(settings).train()
    return settings.output / "checkpoints"


def test_a_checkpoint_is_a_model_folder_with_clean_names(checkpoints: Path) -> None:
    """B80: Hugging Face's names, without the prefixes of compiled or wrapped models."""
    folder = load_model_folder(checkpoints / "step-00000010")
    with safe_open(checkpoints / "step-00000010" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names == {name for name, _ in folder.model.named_parameters()}
    assert all(name.startswith("model.") for name in names)
    assert folder.provenance["training"]["steps"] == 10
    assert folder.generation.eos_token_ids == (folder.tokenizer.end_of_text_id,)


def test_the_optimizer_comes_back_whole(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """B85: moments and step counter are equal, and one more step goes on counting."""
    saved = torch.load(checkpoints / "step-00000010" / STATE_FILE, weights_only=True)["optimizer"]
    trainer = Trainer(change(settings, resume=True, max_steps=11))
    loaded = trainer.optimizer.state_dict()
    assert loaded["state"].keys() == saved["state"].keys()
    for index, state in saved["state"].items():
        assert state["step"] == 10
        assert state["exp_avg"].norm() > 0
        for name, value in state.items():
            assert torch.equal(loaded["state"][index][name], value)
    trainer.train()
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {11}


def test_a_missing_random_state_is_a_loud_warning(checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B84."""
    path = checkpoints / "step-00000010" / STATE_FILE
    state = torch.load(path, weights_only=True)
    del state["random"]
    torch.save(state, path)
    write_checksums(path.parent)
    assert load_newest_checkpoint(checkpoints).run.step == 10
    assert [r.levelno for r in caplog.records if "no state of the random generators" in r.message] == [logging.WARNING]


def test_the_random_state_comes_back(checkpoints: Path) -> None:
    """B84."""
    load_newest_checkpoint(checkpoints)
    first = torch.rand(3)
    torch.manual_seed(123)
    load_newest_checkpoint(checkpoints)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("file", [STATE_FILE, "model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut", "missing", "garbage"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    checkpoints: Path, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoints / "step-00000010" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"garbage")
    assert load_newest_checkpoint(checkpoints).run.step == 5
    assert "step-00000010 is damaged and is left aside" in caplog.text


def test_no_intact_checkpoint_is_an_error_that_counts(checkpoints: Path) -> None:
    for path in list_checkpoints(checkpoints):
        (path / STATE_FILE).write_bytes(b"")
    with pytest.raises(TrainerError, match="none of the 2 in it can be read; begin anew with --overwrite"):
        load_newest_checkpoint(checkpoints)


def test_the_state_is_never_unpickled_freely(checkpoints: Path, tmp_path: Path) -> None:
    """A state file that would run code when unpickled counts as damaged."""
    (checkpoints / "step-00000010" / STATE_FILE).unlink()
    torch.save({"run": {"step": 10}, "optimizer": tmp_path.touch}, checkpoints / "step-00000010" / STATE_FILE)
    write_checksums(checkpoints / "step-00000010")
    assert load_newest_checkpoint(checkpoints).run.step == 5


def test_a_disk_that_is_full_for_the_state_alone(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """B87: the weights still fit, torch's own file does not; the reason is told and the folder stays as it was."""
    before = sorted(checkpoints.rglob("*"))
    trainer = Trainer(change(settings, resume=True, max_steps=11))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (checkpoints / "step-00000010" / "model.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, limits[1]))
    try:
        with pytest.raises(
            TrainerError,
            match=r"step-00000011: writing the model failed .*too large.*checkpoint is .*-00000010$",
        ):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(checkpoints.rglob("*")) == before
    assert load_newest_checkpoint(checkpoints).run.step == 10


def test_only_the_newest_are_kept(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    Trainer(change(settings, checkpoint_interval=3, keep=2)).train()
    assert [path.name for path in list_checkpoints(settings.output / "checkpoints")] == [
        "step-00000010",
        "step-00000009",
    ]


def test_the_state_is_read_to_the_cpu_first(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B90: a file written on a device that is not here still loads."""
    places = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: places.append(k["map_location"]) or load(*a, **k))
    load_newest_checkpoint(checkpoints)
    assert places == ["cpu"]


def test_provenance_names_no_path(checkpoints: Path, settings: TrainSettings) -> None:
    """A folder tells nothing about the machine that it was made on."""
    text = (checkpoints / "step-00000010" / "ownlm.json").read_text()
    assert json.loads(text)["training"]["settings"]["d_model"] == 32
    assert str(settings.data) not in text
    assert str(settings.output) not in text
