import shutil
import signal
from pathlib import Path

import pytest

from shared.lm import load_model_folder
from trainer.demo import pipeline, recipe
from trainer.demo.pipeline import make_demo
from trainer.errors import InterruptedRunError, TrainerError
from trainer.settings.train import CheckpointSettings, ModelSettings, OptimizationSettings, TrainSettings, WatchSettings


@pytest.fixture(autouse=True)
def small_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps in two seconds."""
    monkeypatch.setattr(recipe, "CORPUS_BYTES", 100_000)
    monkeypatch.setattr(recipe, "VOCAB_SIZE", 300)
    monkeypatch.setattr(recipe, "VALIDATION_FRACTION", 0.1)
    monkeypatch.setattr(recipe, "training_settings", small_settings)


def small_settings(data: Path, output: Path) -> TrainSettings:
    return TrainSettings(
        data=data,
        output=output,
        model=ModelSettings(d_model=32, num_layers=1, num_heads=2, context_length=32),
        optimization=OptimizationSettings(max_steps=6, batch_size=2, warmup_steps=1),
        watch=WatchSettings(eval_interval=0, eval_tokens=100, sample_interval=0),
        checkpoints=CheckpointSettings(checkpoint_interval=2),
    )


def test_it_leaves_the_model_and_nothing_else(tmp_path: Path) -> None:
    make_demo(tmp_path / "models" / "demo")
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["demo"]
    folder = load_model_folder(tmp_path / "models" / "demo")
    assert folder.provenance["training"]["steps"] == 6
    assert folder.generation.eos_token_ids == (folder.tokenizer.end_of_text_id,)


def test_the_work_can_be_kept(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo", keep=True)
    assert {path.name for path in (tmp_path / "demo.work").iterdir()} == {"stories.txt", "tokenizer", "tokens", "run"}


def test_a_second_call_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_demo(tmp_path / "demo")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").iterdir()}
    make_demo(tmp_path / "demo")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").iterdir()} == before


def test_something_else_in_its_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("years of work")
    with pytest.raises(TrainerError, match="demo exists and is not a model folder"):
        make_demo(tmp_path / "demo")
    assert [path.name for path in tmp_path.rglob("*")] == ["demo", "thesis.txt"]


@pytest.mark.case("D44")
@pytest.mark.parametrize("lost", [1, 2])
def test_a_demo_goes_on_whatever_checkpoint_is_damaged(tmp_path: Path, lost: int) -> None:
    """The demo has no option for it: without an intact checkpoint, training starts from the first step."""
    make_demo(tmp_path / "demo", keep=True)
    shutil.rmtree(tmp_path / "demo")
    for path in sorted((tmp_path / "demo.work" / "run" / "checkpoints").iterdir(), reverse=True)[:lost]:
        (path / "ownlm.json").unlink()
    make_demo(tmp_path / "demo")
    assert load_model_folder(tmp_path / "demo").provenance["training"]["steps"] == 6


def test_an_interrupted_demo_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third step; the second call trains only what is left, from the same corpus."""
    real = pipeline.train

    def interrupted(settings: TrainSettings) -> Path:
        from trainer.training import trainer as training

        steps = training.training_steps

        def with_signal(*arguments: object, **options: object) -> object:
            for step in steps(*arguments, **options):  # type: ignore[arg-type]
                if step.number == 3:
                    signal.raise_signal(signal.SIGINT)
                yield step

        with monkeypatch.context() as patch:
            patch.setattr(training, "training_steps", with_signal)
            return real(settings)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "train", interrupted)
        with pytest.raises(InterruptedRunError, match="stopped after step 3"):
            make_demo(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()
    corpus = (tmp_path / "demo.work" / "stories.txt").stat().st_mtime_ns
    seen = []
    monkeypatch.setattr(pipeline, "train", lambda settings: seen.append(settings.checkpoints.resume) or real(settings))
    make_demo(tmp_path / "demo", keep=True)
    assert seen == [True]
    assert (tmp_path / "demo.work" / "stories.txt").stat().st_mtime_ns == corpus
    assert load_model_folder(tmp_path / "demo").provenance["training"]["steps"] == 6
