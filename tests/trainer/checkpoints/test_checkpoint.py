import json
import logging
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from shared.lm import load_model_folder
from shared.system.checksums import CARD_FILE, CHECKSUMS_FILE, CURVES_FILE, write_checksums
from tests.trainer.machines import on_two_machines
from trainer.checkpoints.checkpoint import STATE_FILE, load_newest_checkpoint
from trainer.checkpoints.folders import checkpoint_path, checkpoint_step, list_checkpoints
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.validation import Evaluation
from trainer.settings.train import TrainSettings
from trainer.training.run import prepare_run
from trainer.training.trainer import Trainer, train
from trainer.training.watching import Watcher


def resumed(settings: TrainSettings) -> Trainer:
    """A trainer that has returned to the newest checkpoint."""
    run = prepare_run(settings)
    assert run.checkpoint is not None
    trainer = Trainer(run)
    trainer.restore(run.checkpoint)
    return trainer


@pytest.fixture
def checkpoints(settings: TrainSettings) -> Path:
    """Those of a finished run of ten steps, at 5 and 10."""
    train(settings)
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
    trainer = resumed(change(settings, resume=True, max_steps=11))
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
    assert [r.levelno for r in caplog.records if "has no random generator state" in r.message] == [logging.WARNING]


def test_the_random_state_comes_back_when_it_is_restored(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """B84; reading alone sets no generator, and neither does a trainer's construction."""
    torch.manual_seed(123)
    before = torch.get_rng_state()
    saved = load_newest_checkpoint(checkpoints).random
    assert saved is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(saved["cpu"], before)
    trainer = Trainer(prepare_run(change(settings, resume=True)))
    torch.manual_seed(123)
    assert trainer.run.checkpoint is not None
    trainer.restore(trainer.run.checkpoint)
    assert torch.equal(torch.get_rng_state(), saved["cpu"])


def test_a_refused_checkpoint_leaves_the_generators_alone(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """They are then as the initial weights left them."""
    other = change(settings, resume=True, learning_rate=0.5)
    prepare_run(change(settings, output=settings.output.with_name("fresh"), learning_rate=0.5))
    fresh = torch.get_rng_state()
    with pytest.raises(UsageError, match="learning_rate"):
        prepare_run(other)
    assert torch.equal(torch.get_rng_state(), fresh)


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
    assert "step-00000010 is damaged: " in caplog.text


def test_a_single_changed_byte_is_found_and_told_with_its_file(
    checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of the weights, where the file still opens and holds numbers."""
    path = checkpoints / "step-00000010" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert load_newest_checkpoint(checkpoints).run.step == 5
    assert re.search(r"model.safetensors is not what was written: its SHA-256 is [0-9a-f]{64}, not ", caplog.text)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"sha256": 3}'])
def test_without_its_checksums_a_checkpoint_is_damaged(
    checkpoints: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoints / "step-00000010" / CHECKSUMS_FILE
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert load_newest_checkpoint(checkpoints).run.step == 5
    assert f"is damaged: {path} " in caplog.text


@pytest.mark.case("D40")
def test_checkpoints_and_the_finished_model_have_checksums_of_all_their_files(checkpoints: Path) -> None:
    for folder in (checkpoints / "step-00000010", checkpoints.parent / "model"):
        sums = json.loads((folder / CHECKSUMS_FILE).read_text())["sha256"]
        assert sums.keys() == {path.name for path in folder.iterdir()} - {CHECKSUMS_FILE, CARD_FILE, CURVES_FILE}


def test_no_intact_checkpoint_is_an_error_that_counts(checkpoints: Path) -> None:
    for path in list_checkpoints(checkpoints):
        (path / STATE_FILE).write_bytes(b"")
    with pytest.raises(TrainerError, match="all 2 in it are damaged; start again with --overwrite"):
        load_newest_checkpoint(checkpoints)


def test_all_processes_take_the_newest_that_all_have(checkpoints: Path, tmp_path: Path) -> None:
    folders = [checkpoints, tmp_path / "other"]
    shutil.copytree(checkpoints, folders[1])
    shutil.rmtree(folders[1] / "step-00000010")
    found = on_two_machines(lambda processes: load_newest_checkpoint(folders[processes.rank], processes))
    assert [(each.path.parent, each.run.step) for each in found] == [(folder, 5) for folder in folders]
    shutil.rmtree(folders[0] / "step-00000005")
    with pytest.raises(TrainerError, match="all 1 in it are damaged, or not there for other processes"):
        on_two_machines(lambda processes: load_newest_checkpoint(folders[processes.rank], processes))
    shutil.rmtree(folders[1])
    with pytest.raises(TrainerError, match="step-00000010 is intact, but process 1 has none"):
        on_two_machines(lambda processes: load_newest_checkpoint(folders[processes.rank], processes))


def test_the_state_is_never_unpickled_freely(checkpoints: Path, tmp_path: Path) -> None:
    """A state file that would run code when unpickled counts as damaged."""
    (checkpoints / "step-00000010" / STATE_FILE).unlink()
    torch.save({"run": {"step": 10}, "optimizer": tmp_path.touch}, checkpoints / "step-00000010" / STATE_FILE)
    write_checksums(checkpoints / "step-00000010")
    assert load_newest_checkpoint(checkpoints).run.step == 5


def test_a_disk_that_is_full_for_the_state_alone(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """B87: the weights still fit, torch's own file does not; the reason is reported and the folder stays as it was."""
    before = sorted(checkpoints.rglob("*"))
    trainer = resumed(change(settings, resume=True, max_steps=11))
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
    train(change(settings, checkpoint_interval=3, keep=2))
    assert [path.name for path in list_checkpoints(settings.output / "checkpoints")] == [
        "step-00000010",
        "step-00000009",
    ]


def test_a_damaged_checkpoint_does_not_push_out_a_good_one(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    """With --keep 1 there is a good one after each save, though the damaged one has the highest number."""
    (checkpoints / "step-00000010" / STATE_FILE).unlink()
    trainer = resumed(change(settings, resume=True, keep=1, checkpoint_interval=1))
    trainer.state.step = 6
    trainer._save_checkpoint()
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000006", "step-00000010.aside"]
    assert load_newest_checkpoint(checkpoints).run.step == 6


def test_older_checkpoints_that_are_damaged_are_not_kept_in_the_place_of_good_ones(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    train(change(settings, checkpoint_interval=3))
    checkpoints = settings.output / "checkpoints"
    (checkpoints / "step-00000009" / STATE_FILE).write_bytes(b"")
    train(change(settings, resume=True, keep=2, max_steps=10))
    assert [path.name for path in list_checkpoints(checkpoints)] == ["step-00000010", "step-00000006"]
    assert (checkpoints / "step-00000009.aside").is_dir()


@pytest.mark.case("D44")
class TestGoingOnAfterDamage:
    """Of a run with checkpoints at 5 and 10, the newer of which is damaged."""

    @pytest.fixture(params=["ownlm.json", "config.json", STATE_FILE, CHECKSUMS_FILE, None])
    def damaged(self, checkpoints: Path, request: pytest.FixtureRequest) -> Path:
        """The folder of checkpoints; one of them lost a file, or all."""
        for path in list((checkpoints / "step-00000010").iterdir()):
            if request.param in {None, path.name}:
                path.unlink()
        return checkpoints

    def test_the_run_comes_past_it(
        self,
        damaged: Path,
        settings: TrainSettings,
        change: Callable[..., TrainSettings],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        left = sorted(path.name for path in (damaged / "step-00000010").iterdir())
        train(change(settings, resume=True, max_steps=12))
        assert [path.name for path in list_checkpoints(damaged)] == ["step-00000012", "step-00000010", "step-00000005"]
        assert load_newest_checkpoint(damaged).run.step == 12
        assert sorted(path.name for path in (damaged / "step-00000010.aside").iterdir()) == left
        assert "step-00000010 was moved aside, to step-00000010.aside: delete it if you do not need it" in caplog.text

    def test_no_message_calls_it_good(
        self, damaged: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
    ) -> None:
        trainer = resumed(change(settings, resume=True))
        assert trainer.saver.kept() == f"the last good checkpoint is {damaged / 'step-00000005'}"


@pytest.mark.case("D44")
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_in_the_way_of_a_checkpoint_is_moved_aside(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings], tmp_path: Path, kind: str
) -> None:
    """At 8, behind a damaged checkpoint at 10, which is no good one either; and at the temporary name."""
    (checkpoints / "step-00000010" / "ownlm.json").unlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    obstacle = checkpoints / "step-00000008"
    if kind == "file":
        obstacle.write_text("mine")
        (checkpoints / ".step-00000008.partial").write_text("half")
    elif kind == "folder":
        shutil.copytree(tmp_path / "other", obstacle)
    else:
        obstacle.symlink_to(tmp_path / "other")
    train(change(settings, resume=True, checkpoint_interval=4, keep=2))
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "step-00000008",
        "step-00000008.aside",
        "step-00000010",
        "step-00000010.aside",
    ]
    aside = checkpoints / "step-00000008.aside"
    assert (aside if kind == "file" else aside / "notes.txt").read_text() == "mine"
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    assert load_newest_checkpoint(checkpoints).run.step == 10


@pytest.mark.case("D44")
def test_a_file_in_the_place_of_the_folder_is_found_before_the_first_step(settings: TrainSettings) -> None:
    settings.output.mkdir()
    (settings.output / "checkpoints").write_text("mine")
    with pytest.raises(FileExistsError, match="checkpoints"):
        prepare_run(settings)


@pytest.mark.case("D44")
def test_a_finished_model_that_lost_a_file_is_replaced(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    (settings.output / "model" / "ownlm.json").unlink()
    model = train(change(settings, resume=True))
    assert load_model_folder(model).provenance["training"]["steps"] == 10
    assert (settings.output / "model.aside" / "model.safetensors").is_file()


@pytest.mark.case("D44")
def test_several_that_are_moved_aside_have_names_of_their_own(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    for _ in range(3):
        (checkpoints / "step-00000010" / "ownlm.json").unlink()
        train(change(settings, resume=True))
    names = {path.name for path in checkpoints.glob("*.aside*")}
    assert names == {"step-00000010.aside", "step-00000010.aside-2", "step-00000010.aside-3"}


@pytest.mark.case("D45")
def test_a_copy_under_the_name_of_another_step_is_damaged(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(checkpoints / "step-00000005", checkpoints / "step-00000015")
    resumed(change(settings, resume=True))
    assert "step-00000015 is damaged: it holds step 5: it is a renamed copy" in caplog.text
    assert [path.name for path in list_checkpoints(checkpoints)] == ["step-00000010", "step-00000005"]


@pytest.fixture
def strays(checkpoints: Path) -> set[str]:
    """Names beside the checkpoints 5 and 10 that only look like such; of Unicode's digits and of others."""
    folders = [
        "step-99",
        "step-150",
        "step-²",
        "step-٣٣٣٣٣٣٣٣",
        "step-00000010_backup",
        "step-000000099",
        "step-00000010 ",
    ]
    for name in folders:
        shutil.copytree(checkpoints / "step-00000005", checkpoints / name)
    files = ["step-00000400", "step-", "step-7"]
    for name in files:
        (checkpoints / name).write_text("no checkpoint")
    return {*folders, *files}


@pytest.mark.case("D45")
def test_strays_neither_count_nor_are_deleted(
    checkpoints: Path, strays: set[str], settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    train(change(settings, resume=True, keep=1, max_steps=12))
    assert {path.name for path in checkpoints.iterdir()} == strays | {"step-00000012"}
    train(change(settings, overwrite=True, keep=1))
    assert {path.name for path in checkpoints.iterdir()} == strays | {"step-00000010"}


@pytest.mark.case("D45")
def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    """Names grow with the ninth digit."""
    for step in (99_999_999, 100_000_000, 5):
        checkpoint_path(tmp_path, step).mkdir()
    assert [checkpoint_step(path) for path in list_checkpoints(tmp_path)] == [100_000_000, 99_999_999, 5]


@pytest.mark.case("D45")
def test_a_checkpoint_may_be_a_link_to_another_disk(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    """Where it is old, the link goes."""
    shutil.move(checkpoints / "step-00000010", tmp_path / "elsewhere")
    (checkpoints / "step-00000010").symlink_to(tmp_path / "elsewhere")
    train(change(settings, resume=True, keep=1, max_steps=12))
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000012"]
    assert (tmp_path / "elsewhere" / STATE_FILE).is_file()


class TestKeepBest:
    """Of a run whose validation loss is set by the test."""

    @pytest.fixture
    def losses(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
        losses: dict[int, float] = {}
        monkeypatch.setattr(Watcher, "evaluate", lambda self: Evaluation(nats=losses[self.step], tokens=1))
        record = Trainer._evaluate

        def evaluate(self: Trainer) -> bool:
            self.run.watcher.step = self.state.step  # type: ignore[attr-defined]
            return record(self)

        monkeypatch.setattr(Trainer, "_evaluate", evaluate)
        return losses

    @pytest.fixture
    def best_of_ten(self, settings: TrainSettings, change: Callable[..., TrainSettings]) -> TrainSettings:
        return change(settings, keep_best=True, keep=1, eval_interval=1, checkpoint_interval=0)

    def test_the_best_stays_and_can_be_served(self, best_of_ten: TrainSettings, losses: dict[int, float]) -> None:
        losses |= dict(enumerate([3, 2, 1, 4, float("nan"), 1, 5, 6, 7, 8], start=1))
        train(best_of_ten)
        folder = best_of_ten.output / "checkpoints"
        assert sorted(path.name for path in folder.iterdir()) == ["best", "step-00000003", "step-00000010"]
        assert load_model_folder(folder / "best").provenance["training"]["validation_loss"] == 1

    def test_it_is_known_after_resuming(
        self, best_of_ten: TrainSettings, losses: dict[int, float], change: Callable[..., TrainSettings]
    ) -> None:
        losses |= {step: 1 + abs(step - 4) for step in range(1, 13)}
        train(best_of_ten)
        train(change(best_of_ten, resume=True, max_steps=12))
        assert (best_of_ten.output / "checkpoints/best").resolve().name == "step-00000004"

    def test_going_back_behind_it_forgets_it(
        self, best_of_ten: TrainSettings, losses: dict[int, float], change: Callable[..., TrainSettings]
    ) -> None:
        """The best and newest checkpoint is damaged: what is left knows of another best."""
        losses |= {step: -step for step in range(1, 11)}
        train(change(best_of_ten, keep=2))
        folder = best_of_ten.output / "checkpoints"
        (folder / "best" / STATE_FILE).unlink()
        trainer = resumed(change(best_of_ten, resume=True, keep=2))
        assert trainer.state.best_step == 9
        assert (folder / "best").resolve().name == "step-00000009"

    @pytest.mark.case("D44")
    def test_a_folder_in_the_place_of_the_link_is_moved_aside(
        self, best_of_ten: TrainSettings, losses: dict[int, float]
    ) -> None:
        """As a copy is where links were followed."""
        losses |= {step: step for step in range(1, 11)}
        folder = best_of_ten.output / "checkpoints"
        (folder / "best").mkdir(parents=True)
        (folder / ".best.new").mkdir()
        train(best_of_ten)
        assert (folder / "best").resolve().name == "step-00000001"
        assert {path.name for path in folder.iterdir()} == {"best", "best.aside", "step-00000001", "step-00000010"}

    def test_beginning_anew_forgets_it(
        self, best_of_ten: TrainSettings, losses: dict[int, float], change: Callable[..., TrainSettings]
    ) -> None:
        losses |= dict.fromkeys(range(1, 11), 1)
        train(best_of_ten)
        train(change(best_of_ten, overwrite=True, keep_best=False))
        assert [path.name for path in (best_of_ten.output / "checkpoints").iterdir()] == ["step-00000010"]


def test_what_a_killed_process_left_is_removed(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    (checkpoints / ".step-00000015.partial").mkdir()
    resumed(change(settings, resume=True))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000005", "step-00000010"]


def test_other_threads_than_the_checkpoint_was_made_with_are_told(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    torch.set_num_threads(2)
    try:
        resumed(change(settings, resume=True))
    finally:
        torch.set_num_threads(1)
    assert "the last bits may differ from those of an uninterrupted run: " in caplog.text
    assert "threads 1, now 2" in caplog.text


def test_another_precision_is_told_and_the_former_can_be_kept(
    checkpoints: Path,
    settings: TrainSettings,
    change: Callable[..., TrainSettings],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`auto` may stand for another one on another machine, or in another version."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    monkeypatch.setattr("trainer.compute.device._WIDE_ENOUGH_FOR_BFLOAT16", settings.model.d_model)
    resumed(change(settings, resume=True))
    assert "resuming in bfloat16, but the run was in float32: use `--dtype float32` to keep that" in caplog.text
    caplog.clear()
    assert resumed(change(settings, resume=True, dtype="float32")).run.device.dtype == torch.float32
    assert "resuming in" not in caplog.text
    with pytest.raises(UsageError, match="dtype: auto in the run, bfloat16 now"):
        resumed(change(settings, resume=True, dtype="bfloat16"))


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


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch itself
def test_compiling_where_the_checkpoint_was_not_is_told(
    checkpoints: Path, settings: TrainSettings, change: Callable[..., TrainSettings], caplog: pytest.LogCaptureFixture
) -> None:
    resumed(change(settings, resume=True, compile=True))
    assert "compile False, now True" in caplog.text
