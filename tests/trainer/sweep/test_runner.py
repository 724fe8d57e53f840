"""A sweep's runs: what is done, what is left out, what is noted. Runs train in this process."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import trainer.sweep.runner as module
from shared.lm import load_model_folder
from shared.system.locks import lock
from trainer.console.signals import StopRequest
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.recipes.options import parse_train_settings
from trainer.settings.encode import EncodeSettings
from trainer.settings.file import read_settings_file
from trainer.settings.train import TrainSettings
from trainer.settings.vocab import VocabSettings
from trainer.sweep.edge import find_edges
from trainer.sweep.plan import Design, combine, plan_runs
from trainer.sweep.record import Outcome
from trainer.sweep.runner import Sweep
from trainer.sweep.studies import STUDIES, Hold
from trainer.sweep.vocabularies import Text
from trainer.training.trainer import train

pytestmark = pytest.mark.extended

Change = Callable[..., TrainSettings]


class InProcess:
    """Takes the place of `run_child`; `before` may fail a run, or ask to stop."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.before: Callable[[list[str], StopRequest], tuple[int, str] | None] = lambda command, stop: None

    def __call__(
        self, arguments: Sequence[str], log: Path, *, stop: StopRequest, lock: int | None, watch: Callable[[], None]
    ) -> tuple[int, str]:
        self.commands.append(list(arguments))
        ended = self.before(self.commands[-1], stop)
        if ended is not None:
            return ended
        table = read_settings_file(Path(arguments[2])).config
        try:
            start = {name: f"--{name}" in arguments for name in ("resume", "overwrite")}
            train(parse_train_settings(table | start, source="test"))
        except TrainerError as error:
            return 1, str(error)
        watch()
        return 0, "done"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    child = InProcess()
    monkeypatch.setattr(module, "run_child", child)
    return child


def new_sweep(settings: TrainSettings, grid: dict[str, list[Any]], *text: Path, **others: Any) -> Sweep:
    design = Design(settings, **others)
    return Sweep(design, plan_runs(design, combine(design.study, grid, {}, settings)), Text(text))


def sweep(settings: TrainSettings, **grid: list[Any]) -> list[Outcome]:
    return new_sweep(settings, grid).run()


def test_the_best_is_named_and_a_diverging_run_ends_nothing(settings: TrainSettings, child: InProcess) -> None:
    outcomes = {o.changes["learning_rate"]: o for o in sweep(settings, learning_rate=[1e4, 1e-6, 1e-2])}
    assert [outcomes[rate].status for rate in (1e4, 1e-6, 1e-2)] == ["diverged", "finished", "finished"]
    assert "the loss rose to" in outcomes[1e4].reason or "diverged" in outcomes[1e4].reason
    assert outcomes[1e-2].validation_loss < outcomes[1e-6].validation_loss  # type: ignore[operator]
    written = json.loads((settings.output / "sweep.json").read_text())["runs"]
    assert [run["changes"]["learning_rate"] for run in written] == [1e-2, 1e-6, 1e4]
    assert load_model_folder(settings.output / "learning_rate=0.01" / "model").provenance["training"]["steps"] == 10


def test_ablations_are_a_sweep_with_a_baseline(settings: TrainSettings, change: Change, child: InProcess) -> None:
    base = change(settings, qk_norm=False, initialization="normal", learning_rate=1e-2)
    work = new_sweep(base, {}, study=STUDIES["ablations"])
    assert work.notes[1] == "In every run: qk_norm=False, initialization=normal (the defaults of this study)."
    outcomes = {outcome.name: outcome for outcome in work.run()}
    assert [name for name, outcome in outcomes.items() if outcome.baseline] == ["baseline"]
    assert {path.parent.name for path in base.output.glob("*/train.toml")} == set(outcomes)
    sizes = {
        name: load_model_folder(base.output / name / "model", research=True).model.config.num_parameters
        for name, outcome in outcomes.items()
        if outcome.status == "finished"
    }
    width, layers = base.model.d_model, base.model.num_layers
    expected = {"baseline": 0, "norm=post": width, "norm=none": (2 * layers + 1) * width}
    assert {name: sizes["baseline"] - size for name, size in sizes.items()} == {
        "position=none": 0,
        "activation=silu": 0,
        **expected,
    }
    assert f"activation=silu: SiLU without a gate; d_ff 72 instead of 48, {sizes['baseline']:,}" in work.notes[-1]
    written = json.loads((base.output / "sweep.json").read_text())
    assert written["notes"] == work.notes
    child.commands.clear()
    assert [outcome.status for outcome in new_sweep(base, {}, study=STUDIES["ablations"]).run()] == ["finished"] * 5
    assert not child.commands


def test_query_key_norm_that_is_asked_for_is_said(settings: TrainSettings, change: Change) -> None:
    base = change(settings, qk_norm=True, initialization="normal")
    notes = new_sweep(base, {}, study=STUDIES["ablations"]).notes
    assert notes[1] == "In every run: qk_norm=True, initialization=normal (as asked)."
    varied = new_sweep(base, {"qk_norm": [True, False]}, study=STUDIES["ablations"])
    assert varied.notes[1] == "In every run: initialization=normal (the defaults of this study)."
    assert sum(run.baseline for run in varied.runs) == 2


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        ("tokens", "every run trains on 640 tokens, so .* fewer steps"),
        ("steps", "every run takes 10 steps, so .* more"),
    ],
)
def test_what_is_held_is_said(settings: TrainSettings, change: Change, hold: Hold, said: str) -> None:
    base = change(settings, total_batch_size=4, max_steps=10)
    notes = new_sweep(base, {"total_batch_size": [2, 4]}, hold=hold).notes
    assert re.search(said, notes[0]), notes[0]
    assert "learning rate is 0.01 in every run" in notes[1]


def test_the_edge_of_stability_is_narrowed_and_a_repetition_adds_nothing(
    settings: TrainSettings, child: InProcess
) -> None:
    grid: dict[str, list[Any]] = {"learning_rate": [1e-3, 1e4]}
    outcomes = new_sweep(settings, grid, refinements=2).run()
    rates = [outcome.changes["learning_rate"] for outcome in outcomes]
    assert rates[2] == 3.16
    assert len(rates) == 4
    (edge,) = find_edges((outcome.changes, outcome.status) for outcome in outcomes).values()
    assert edge.stable is not None
    assert edge.diverged is not None
    assert edge.diverged / edge.stable == pytest.approx(1e7**0.25, rel=0.02)
    child.commands.clear()
    assert new_sweep(settings, grid, refinements=2).run() == outcomes
    assert not child.commands
    assert len(new_sweep(settings, grid, refinements=3).run()) == 5
    assert len(child.commands) == 1


def test_overwriting_covers_what_narrowed_the_edge(settings: TrainSettings, change: Change, child: InProcess) -> None:
    grid: dict[str, list[Any]] = {"learning_rate": [1e-3, 1e4]}
    new_sweep(settings, grid, refinements=1).run()
    child.commands.clear()
    new_sweep(change(settings, overwrite=True), grid, refinements=1).run()
    assert len(child.commands) == 3


def test_what_is_done_is_left_out_and_what_is_new_is_run(settings: TrainSettings, child: InProcess) -> None:
    sweep(settings, seed=[1, 2])
    child.commands.clear()
    assert [outcome.status for outcome in sweep(settings, seed=[1, 2, 3])] == ["finished"] * 3
    assert len(child.commands) == 1
    assert "seed=3" in child.commands[0][2]


def test_a_failed_run_is_noted_and_tried_again_the_next_time(settings: TrainSettings, child: InProcess) -> None:
    child.before = lambda command, stop: (-9, "") if "seed=1" in command[2] else None
    failed, finished = sweep(settings, seed=[1, 2])
    assert (failed.status, failed.reason) == ("failed", "killed by SIGKILL (out of memory?)")
    assert finished.status == "finished"
    child.before = lambda command, stop: None
    assert [outcome.status for outcome in sweep(settings, seed=[1, 2])] == ["finished", "finished"]


def test_a_diverged_run_is_not_tried_again(settings: TrainSettings, child: InProcess) -> None:
    before = sweep(settings, learning_rate=[1e4, 1e-3])
    child.commands.clear()
    assert sweep(settings, learning_rate=[1e4, 1e-3]) == before
    assert not child.commands


def test_an_interrupted_sweep_is_resumed(settings: TrainSettings, child: InProcess) -> None:
    """Stopped in its second run, after a checkpoint: that one is resumed, the first is left out."""

    def stop_second(command: list[str], stop: StopRequest) -> tuple[int, str] | None:
        if "seed=2" not in command[2]:
            return None
        settings_2 = parse_train_settings(read_settings_file(Path(command[2])).config, source="test")
        train(settings_2)
        model = settings_2.output / "model"  # as if it had been stopped after its checkpoint of step 5
        for path in (model, settings_2.output / "checkpoints" / "step-00000010"):
            shutil.rmtree(path)
        stop.signal_number = signal.SIGINT
        return 130, "stopped"

    child.before = stop_second
    with pytest.raises(InterruptedRunError, match=r"stopped in seed=2; 1 of 3 runs are done"):
        sweep(settings, seed=[1, 2, 3])
    child.before = lambda command, stop: None
    child.commands.clear()
    assert [outcome.status for outcome in sweep(settings, seed=[1, 2, 3])] == ["finished"] * 3
    assert ["--resume" in command for command in child.commands] == [True, False]


@pytest.mark.case("D45")
@pytest.mark.parametrize("left", ["step-99", "step-²", "step-00000005_backup", "step-00000005"])
def test_a_run_without_a_checkpoint_starts_again(
    settings: TrainSettings, child: InProcess, tmp_path: Path, left: str
) -> None:
    """Copies under other names are none, and stay; a damaged one goes."""
    train(settings)
    shutil.copytree(settings.output / "checkpoints" / "step-00000005", tmp_path / "copy")
    (tmp_path / "copy" / "ownlm.json").unlink()
    checkpoints = settings.output / "seed=1" / "checkpoints"
    shutil.copytree(tmp_path / "copy", checkpoints / left)
    assert [outcome.status for outcome in sweep(settings, seed=[1])] == ["finished"]
    assert {path.name for path in checkpoints.iterdir()} == {left, "step-00000005", "step-00000010"}


def test_runs_of_other_settings_are_not_mixed_in(settings: TrainSettings, change: Change, child: InProcess) -> None:
    sweep(settings, seed=[1])
    with pytest.raises(UsageError, match=r"seed=1 contains .* other settings: max_steps is 10 in the folder, 12 now"):
        sweep(change(settings, max_steps=12), seed=[1])
    assert sweep(change(settings, eval_interval=5), seed=[1])[0].status == "finished"  # changes no result
    assert sweep(change(settings, max_steps=12, overwrite=True), seed=[1])[0].step == 12


def test_a_model_that_cannot_be_is_refused_before_the_first_run(settings: TrainSettings, child: InProcess) -> None:
    with pytest.raises(UsageError, match=r"run d_model=33: --d-model \(33\) must be a multiple of --num-heads \(2\)"):
        sweep(settings, d_model=[32, 33])
    assert not child.commands
    assert not settings.output.exists()


def test_data_is_named_where_it_is_missing(settings: TrainSettings, change: Change, child: InProcess) -> None:
    with pytest.raises(UsageError, match="give --data"):
        sweep(change(settings, data=Path()), seed=[1])


def test_each_vocabulary_is_made_once_and_evaluated_on_as_much_text(
    settings: TrainSettings, change: Change, text_file: Path, child: InProcess
) -> None:
    from shared.bpe import Tokenizer
    from trainer.tokenizer.train import train_tokenizer
    from trainer.tokens.encode import encode_files

    def make(command: list[str], stop: StopRequest) -> tuple[int, str] | None:
        output = Path(command[command.index("--output") + 1]) if "--output" in command else Path()
        if command[0] == "vocab":
            size = int(command[command.index("--vocab-size") + 1])
            train_tokenizer([Path(command[1])], output, VocabSettings(vocab_size=size, overwrite=True))
        elif command[0] == "encode":
            tokenizer = Tokenizer.from_files(command[command.index("--tokenizer") + 1])
            share = float(command[command.index("--val-fraction") + 1])
            encode_files([Path(command[1])], tokenizer, output, EncodeSettings(val_fraction=share, overwrite=True))
        else:
            return None
        return 0, ""

    child.before = make
    base = change(settings, data=Path())
    grid: dict[str, list[Any]] = {"vocab_size": [260, 290]}
    outcomes = new_sweep(base, grid, text_file).run()
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    assert [command[0] for command in child.commands] == ["vocab", "encode", "vocab", "encode", "train", "train"]
    folders = [base.output / "vocabularies" / size / "tokens" for size in ("260", "290")]
    counts = [json.loads((folder / "val.json").read_text())["count"] for folder in folders]
    tables = [read_settings_file(base.output / f"vocab_size={size}" / "train.toml").config for size in (260, 290)]
    assert [table["eval_tokens"] for table in tables] == [200, round(200 * counts[1] / counts[0])]
    child.commands.clear()
    new_sweep(base, grid, text_file).run()
    assert not child.commands
    for sizes, text, message in (
        ([256], [text_file], "at least 257; got 256"),
        ([300], [], "give --text"),
        ([300], [Path("none.txt")], "none.txt"),
    ):
        with pytest.raises(TrainerError, match=message):
            new_sweep(base, {"vocab_size": list(sizes)}, *text)


def test_runs_of_another_precision_or_evaluation_are_not_mixed_in(
    settings: TrainSettings, child: InProcess, change: Callable[..., TrainSettings]
) -> None:
    sweep(settings, seed=[1])
    for name, value in {"dtype": "bfloat16", "eval_tokens": 100}.items():
        with pytest.raises(UsageError, match=f"with other settings: {name} is .* in the folder, {value} now"):
            sweep(change(settings, **{name: value}), seed=[1])
    child.commands.clear()
    sweep(change(settings, log_interval=5), seed=[1])
    assert not child.commands


def test_a_folder_named_after_divergence_is_none(settings: TrainSettings, child: InProcess) -> None:
    def finish(command: list[str], stop: StopRequest) -> tuple[int, str]:
        train(parse_train_settings(read_settings_file(Path(command[2])).config, source="test"))
        return 0, "the model is in diverged/model"

    child.before = finish
    assert [outcome.status for outcome in sweep(settings, seed=[1])] == ["finished"]


def test_a_folder_that_another_sweep_works_in_is_left_alone(
    settings: TrainSettings, child: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.0)
    settings.output.mkdir()
    with (settings.output / ".lock").open("w") as other:
        assert lock(other.fileno(), holder="file")
        with pytest.raises(TrainerError, match="another sweep is running in"):
            sweep(settings, seed=[1, 2])
    assert not child.commands
