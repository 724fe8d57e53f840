import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import Transformer, load_model_folder
from shared.system.checksums import write_checksums
from trainer.errors import DivergedError, InterruptedRunError, TrainerError, UsageError
from trainer.recipes.options import parse_train_settings
from trainer.settings.encode import EncodeSettings
from trainer.settings.file import read_settings_file
from trainer.settings.train import TrainSettings
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile, TokenFileError
from trainer.training.trainer import train
from trainer.training.watching import Watcher

Change = Callable[..., TrainSettings]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_model_folder(folder).model.state_dict()


def assert_same_weights(one: Path, other: Path) -> None:
    for (name, weight), (other_name, other_weight) in zip(weights(one).items(), weights(other).items(), strict=True):
        assert name == other_name
        assert torch.equal(weight, other_weight), name


def metrics(settings: TrainSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.output / "metrics.jsonl").read_text().splitlines()]


def losses(settings: TrainSettings) -> list[float]:
    return [record["loss"] for record in metrics(settings) if "loss" in record]


def rates(settings: TrainSettings) -> list[float]:
    return [record["learning_rate"] for record in metrics(settings) if "learning_rate" in record]


def stopped_at(step: int, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and crash right after a step."""
    import trainer.training.trainer as module

    def steps(*arguments: Any, **options: Any) -> Iterator[Any]:
        for done in real(*arguments, **options):
            yield done
            if done.number == step:
                raise OSError("power cut")

    real = module.training_steps
    with monkeypatch.context() as patch:
        patch.setattr(module, "training_steps", steps)
        with pytest.raises(OSError, match="power cut"):
            train(settings)


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B84, B85: weights and losses are equal, with dropout and after a crash between two checkpoints."""
    settings = change(settings, dropout=0.5)
    whole = change(settings, output=settings.output.with_name("whole"))
    train(whole)
    stopped_at(8, settings, monkeypatch)
    torch.manual_seed(99)
    train(change(settings, resume=True))
    assert_same_weights(settings.output / "model", whole.output / "model")
    assert losses(settings) == losses(whole)
    assert [record["step"] for record in metrics(settings)] == [record["step"] for record in metrics(whole)]


def test_a_finished_run_can_be_resumed_and_made_longer(
    settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    train(settings)
    train(change(settings, resume=True))
    assert len(losses(settings)) == 10
    train(change(settings, resume=True, max_steps=12))
    assert "--max-steps was 10 and is 12 now" in caplog.text
    assert len(losses(settings)) == 12
    assert "max_steps = 12" in (settings.output / "train.toml").read_text()


def test_looking_does_not_change_training(settings: TrainSettings, change: Change) -> None:
    """B86: evaluation and samples at every third step leave losses and weights as they would be without."""
    settings = change(settings, dropout=0.5)
    watched = change(settings, output=settings.output.with_name("watched"), eval_interval=3, sample_interval=3)
    train(settings)
    train(watched)
    assert losses(watched) == losses(settings)
    assert_same_weights(watched.output / "model", settings.output / "model")
    steps = {key: [r["step"] for r in metrics(watched) if key in r] for key in ("validation_loss", "sample")}
    assert steps == {"validation_loss": [3, 6, 9, 10], "sample": [3, 6, 9]}
    assert all(record["sample"].startswith("the") for record in metrics(watched) if "sample" in record)


def test_transformers_finds_the_same_validation_loss(settings: TrainSettings) -> None:
    """The finished folder, opened by transformers, scores the validation tokens as we say in our metrics."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(train(settings))
    file = TokenFile.open(settings.data, "val")
    tokens = torch.tensor([file.manifest.end_of_text_id, *file.tokens[:200].tolist()])
    nats = 0.0
    for start in range(0, 200, 16):
        window = tokens[start : start + 17].unsqueeze(0)
        with torch.no_grad():
            nats += model(window, labels=window).loss.item() * (window.shape[1] - 1)
    assert metrics(settings)[-1]["validation_loss"] == pytest.approx(nats / 200, abs=1e-5)


def test_without_validation_tokens_it_trains_all_the_same(
    settings: TrainSettings, change: Change, text_file: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """B77: no val.json."""
    encode_files([text_file], Tokenizer.from_files(tokenizer_folder), tmp_path / "tokens")
    model = train(change(settings, data=tmp_path / "tokens", eval_interval=2))
    assert load_model_folder(model).provenance["training"]["validation_loss"] is None


@pytest.mark.parametrize("text", ["", "the", "the cat sees a dog"])
def test_validation_text_shorter_than_a_window(
    settings: TrainSettings, change: Change, text_file: Path, tokenizer_folder: Path, tmp_path: Path, text: str
) -> None:  # fmt: skip
    """B77: what there is gets scored; a single token, from an empty document, is refused before training."""
    tokenizer = Tokenizer.from_files(tokenizer_folder)
    (tmp_path / "val.txt").write_text(text + "<|endoftext|>")
    encode_files([text_file], tokenizer, tmp_path / "tokens")
    encode_files([tmp_path / "val.txt"], tokenizer, tmp_path / "tokens", EncodeSettings(split="val"))
    short = change(settings, data=tmp_path / "tokens")
    if text:
        train(short)
        assert metrics(short)[-1]["validation_loss"] > 0
        return
    with pytest.raises(TrainerError, match=r"val.json: need at least 2 tokens, found 1"):
        train(short)
    assert not short.output.exists()


def test_a_document_longer_than_the_window_is_trained_on(
    settings: TrainSettings, change: Change, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """B82: a single document, many windows long; every window is full, so none has nothing to predict."""
    (tmp_path / "long.txt").write_text("the old cat sees a dog " * 200)
    encode_files([tmp_path / "long.txt"], Tokenizer.from_files(tokenizer_folder), tmp_path / "tokens")
    long = change(settings, data=tmp_path / "tokens", max_steps=40)
    train(long)
    assert losses(long)[-1] < 1.5 < losses(long)[0]


def test_lasting_nan_keeps_the_last_good_checkpoint(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81: the run stops, says where to go back to, and writes nothing more."""
    hidden, calls = Transformer.hidden, []

    def poisoned(self: Transformer, tokens: Tensor) -> Tensor:
        calls.append(1)
        return hidden(self, tokens) * (float("nan") if len(calls) > 7 else 1)

    monkeypatch.setattr(Transformer, "hidden", poisoned)
    with pytest.raises(DivergedError, match=r"step 8: loss nan.*last good checkpoint is .*step-00000005"):
        train(settings)
    assert len(losses(settings)) == 7
    assert all(weight.isfinite().all() for weight in weights(settings.output / "checkpoints/step-00000005").values())
    assert not (settings.output / "model").exists()


def test_going_on_with_other_settings_is_refused_by_name(settings: TrainSettings, change: Change) -> None:
    train(settings)
    with pytest.raises(UsageError, match=r"d_model: 32 in the run, 64 now\n.*learning_rate: 0.01 in the run, 0.02 now"):
        train(change(settings, resume=True, d_model=64, learning_rate=0.02))


def test_a_run_from_before_a_setting_existed_has_its_default(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_at(6, settings, monkeypatch)
    state_file = settings.output / "checkpoints" / "step-00000005" / "training_state.pt"
    state = torch.load(state_file, weights_only=True)
    for name in ("data_order", "warmup_from_zero", "momentum", "improved"):
        del state["settings"][name]
    torch.save(state, state_file)
    write_checksums(state_file.parent)
    with pytest.raises(UsageError, match="data_order: epochs in the run, uniform now"):
        train(change(settings, resume=True, data_order="uniform"))
    assert train(change(settings, resume=True)).is_dir()


def test_going_on_with_other_data_is_refused(
    settings: TrainSettings, change: Change, text_file: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    train(settings)
    encode_files(
        [text_file], Tokenizer.from_files(tokenizer_folder), tmp_path / "tokens", EncodeSettings(val_fraction=0.3)
    )
    with pytest.raises(UsageError) as refused:
        train(change(settings, resume=True, data=tmp_path / "tokens"))
    reported = [line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]]
    assert reported == ["data train tokens", "data train hash", "data validation tokens", "data validation hash"]


def test_a_folder_that_holds_a_run_is_left_alone_unless_told(settings: TrainSettings, change: Change) -> None:
    train(settings)
    before = (settings.output / "metrics.jsonl").read_text()
    with pytest.raises(UsageError, match="already holds a run"):
        train(settings)
    assert (settings.output / "metrics.jsonl").read_text() == before
    train(change(settings, overwrite=True, max_steps=3))
    assert len(losses(settings)) == 3
    assert [path.name for path in (settings.output / "checkpoints").iterdir()] == ["step-00000003"]


def test_a_folder_that_another_process_trains_into_is_left_alone(settings: TrainSettings) -> None:
    """Two processes would mix their metrics and delete each other's checkpoints; the lock ends with its process."""
    settings.output.mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(settings.output / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(TrainerError, match="another process trains into"):
            train(settings)
        other.kill()
    assert [path.name for path in settings.output.iterdir()] == [".lock"]
    train(settings)


def test_resuming_where_there_is_no_run_leaves_nothing_behind(settings: TrainSettings, change: Change) -> None:
    with pytest.raises(UsageError, match="no run to resume in"):
        train(change(settings, resume=True))
    assert not settings.output.exists()


def test_a_signal_after_the_last_step_costs_nothing(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last evaluation may be long, and no checkpoint holds the steps before it yet."""

    def evaluate(watcher: Watcher) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Watcher, "evaluate", evaluate)
    train(change(settings, eval_interval=0, checkpoint_interval=0))
    assert weights(settings.output / "model")
    assert (settings.output / "checkpoints" / "step-00000010").is_dir()


def test_a_signal_while_a_checkpoint_is_saved_saves_no_second_one(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving a large model may take most of the time that there is before a SIGKILL."""
    import trainer.checkpoints.saving as module

    saved, real = [], module.save_checkpoint

    def save(folder: Path, **parts: Any) -> Path:
        saved.append(parts["run"].step)
        os.kill(os.getpid(), signal.SIGTERM)
        return real(folder, **parts)

    monkeypatch.setattr(module, "save_checkpoint", save)
    with pytest.raises(InterruptedRunError, match=r"stopped after step 5; saved .*step-00000005$"):
        train(settings)
    assert saved == [5]


def test_tokens_of_another_tokenizer_are_refused_before_the_first_step(
    settings: TrainSettings, change: Change, text_file: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    encode_files([text_file], Tokenizer.from_files(tokenizer_folder), tmp_path / "tokens")
    manifest = tmp_path / "tokens" / "train.json"
    real = json.loads(manifest.read_text())["fingerprint"]
    manifest.write_text(manifest.read_text().replace(real, "0" * 64))
    with pytest.raises(TokenFileError, match=f"{'0' * 64}.*{real}"):
        train(change(settings, data=tmp_path / "tokens"))


def test_an_id_beyond_the_vocabulary_is_refused_before_the_first_step(
    settings: TrainSettings, change: Change, text_file: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """B79."""
    encode_files([text_file], Tokenizer.from_files(tokenizer_folder), tmp_path / "tokens")
    path = tmp_path / "tokens" / "train-00000.bin"
    content = bytearray(path.read_bytes())
    content[40:42] = (60_000).to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(TokenFileError, match="token 20 is 60000"):
        train(change(settings, data=tmp_path / "tokens"))
    assert not settings.output.exists()


def test_a_prompt_that_fills_the_context_is_refused_before_the_first_step(
    settings: TrainSettings, change: Change
) -> None:
    with pytest.raises(UsageError, match="need a prompt of at most 15 tokens"):
        train(change(settings, sample_prompt="the cat sees the dog " * 10, sample_interval=9))
    assert not settings.output.exists()


@pytest.mark.case("D52")
@pytest.mark.parametrize("interval", [0, 10, 500])
@pytest.mark.parametrize("prompt", ["the cat " * 16, "x" * 1000])
def test_a_prompt_that_is_never_used_need_not_fit(
    settings: TrainSettings, change: Change, interval: int, prompt: str
) -> None:
    """Of ten steps the tenth writes no sample either."""
    train(change(settings, sample_interval=interval, sample_prompt=prompt))


def test_a_compiled_model_saves_what_a_plain_one_saves(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B80: what is saved is the model, not its compiled form, whose names have a prefix."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend="eager"))
    compiled = change(settings, output=settings.output.with_name("compiled"), compile=True)
    train(settings)
    train(compiled)
    for name, weight in weights(compiled.output / "model").items():
        torch.testing.assert_close(weight, weights(settings.output / "model")[name], msg=name)
    train(change(compiled, resume=True, compile=False, max_steps=11))


@pytest.mark.case("D47")
def test_a_trial_of_a_long_run_has_its_learning_rates_and_can_be_gone_on_with(
    settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped after 4 steps of 10, and resumed from its own settings file: the uninterrupted run to the bit."""
    settings = change(settings, dropout=0.5)
    whole = change(settings, output=settings.output.with_name("whole"))
    train(whole)
    assert train(change(settings, stop_after=4)) == settings.output / "checkpoints" / "step-00000004"
    assert not (settings.output / "model").exists()
    assert rates(settings) == rates(whole)[:4]
    with pytest.raises(UsageError, match=r"--stop-after \(4\) must be above 4, the step of the checkpoint"):
        train(change(settings, stop_after=4, resume=True))
    with caplog.at_level("INFO"):
        assert train(change(settings, stop_after=5, resume=True)).name == "step-00000005"  # where one is due as well
    assert "stopped after step 5 (--stop-after); --resume continues from" in caplog.text
    table = read_settings_file(settings.output / "train.toml").config
    train(parse_train_settings(table | {"resume": True}, source="test"))
    assert_same_weights(settings.output / "model", whole.output / "model")
    assert losses(settings) == losses(whole)


@pytest.mark.case("D47")
def test_a_trial_that_is_as_long_as_the_run_is_the_run(settings: TrainSettings, change: Change) -> None:
    assert train(change(settings, stop_after=10)) == settings.output / "model"
    with pytest.raises(UsageError, match=r"--stop-after \(11\) must be at most --max-steps \(10\)"):
        change(settings, stop_after=11)


def cut_off_at(step: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate a file when a step is done."""
    import trainer.training.trainer as module

    def steps(*arguments: Any, **options: Any) -> Iterator[Any]:
        for done in real(*arguments, **options):
            if done.number == step:
                os.truncate(file, 100)
            yield done

    real = module.training_steps
    monkeypatch.setattr(module, "training_steps", steps)


@pytest.mark.case("D50")
@pytest.mark.parametrize("name", ["train", "val"])
def test_data_that_is_cut_off_meanwhile_ends_the_run_with_a_checkpoint(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """With a memory map that was SIGBUS. With the file back in its place, it goes on to the same result."""
    data = shutil.copytree(settings.data, tmp_path / "tokens")
    settings = change(settings, data=data, dropout=0.5, eval_interval=4, eval_tokens=0)
    whole = change(settings, output=settings.output.with_name("whole"))
    train(whole)
    content = (data / f"{name}-00000.bin").read_bytes()
    with monkeypatch.context() as patch:
        cut_off_at(3, data / f"{name}-00000.bin", patch)
        with pytest.raises(TrainerError) as caught:
            train(settings)
    # The windows of step 4 had been read ahead when step 3 was done; the first evaluation comes after it.
    message = (
        rf"{name}-00000\.bin was cut short while it was read.*; the last good checkpoint is .*/step-00000004; restore"
    )
    assert re.search(message, str(caught.value))
    (data / f"{name}-00000.bin").write_bytes(content)
    train(change(settings, resume=True))
    assert_same_weights(settings.output / "model", whole.output / "model")
    assert losses(settings) == losses(whole)


@pytest.mark.case("D50")
def test_data_that_is_replaced_meanwhile_is_read_as_it_was(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `encode --overwrite` does it: the run stays with the data that it has verified."""
    data = shutil.copytree(settings.data, tmp_path / "tokens")
    train(settings)
    moved = change(settings, data=data, output=settings.output.with_name("moved"))
    other = tmp_path / "other.bin"
    other.write_bytes(b"\0" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", lambda file, _: other.replace(file))
        cut_off_at(3, data / "train-00000.bin", patch)
        train(moved)
    assert_same_weights(settings.output / "model", moved.output / "model")


@pytest.mark.case("D50")
def test_data_that_is_not_needed_any_more_may_go(
    settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The windows of a step after the last are read ahead too, and asked for by none."""
    data = shutil.copytree(settings.data, tmp_path / "tokens")
    monkeypatch.setattr(Watcher, "evaluate", lambda _: None)
    cut_off_at(9, data / "train-00000.bin", monkeypatch)
    train(change(settings, data=data))
