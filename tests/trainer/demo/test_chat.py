"""`demo --chat`: from the demo's model to one that answers questions."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from shared.chat import DEFAULT_TEMPLATE
from shared.lm import load_model_folder
from trainer.demo import chat, pipeline, recipe
from trainer.demo.chat import make_chat_demo
from trainer.demo.pipeline import make_demo
from trainer.errors import InterruptedRunError, TrainerError
from trainer.settings.train import CheckpointSettings, ModelSettings, OptimizationSettings, TrainSettings, WatchSettings

pytestmark = pytest.mark.extended

CONTEXT, CHAT_CONTEXT = 512, 768


def settings(data: Path, output: Path, *, steps: int) -> TrainSettings:
    return TrainSettings(
        data=data,
        output=output,
        model=ModelSettings(d_model=32, num_layers=1, num_heads=2, context_length=CONTEXT),
        optimization=OptimizationSettings(max_steps=steps, batch_size=2, warmup_steps=1),
        watch=WatchSettings(eval_interval=0, eval_tokens=0, sample_interval=0),
        checkpoints=CheckpointSettings(checkpoint_interval=2),
    )


def use_small_recipe(patch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CORPUS_BYTES": 100_000,
        "VOCAB_SIZE": 300,
        "VALIDATION_FRACTION": 0.1,
        "CONVERSATIONS": 20,
        "HELD_OUT_STORIES": 3,
        "CHAT_CONTEXT": CHAT_CONTEXT,
        "training_settings": lambda data, output: settings(data, output, steps=2),
        "chat_settings": lambda data, output: settings(data, output, steps=4),
    }.items():
        patch.setattr(recipe, name, value)


@pytest.fixture(autouse=True)
def small_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_recipe(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model."""
    folder = tmp_path_factory.mktemp("models") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        use_small_recipe(patch)
        make_demo(folder)
    return folder


@pytest.fixture
def demo(trained: Path, tmp_path: Path) -> Path:
    """The same in a folder of its own."""
    return Path(shutil.copytree(trained, tmp_path / "demo"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_leaves_both_models_and_a_record(demo: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = files(demo)
    make_chat_demo(demo)
    assert files(demo) == before, "the demo's model stays as it is"
    assert {path.name for path in demo.parent.iterdir()} == {"demo", "demo-chat"}
    output = demo.with_name("demo-chat")
    folder = load_model_folder(output)
    assert folder.provenance["training"]["steps"] == 4
    assert (load_model_folder(demo).config.context_length, folder.config.context_length) == (CONTEXT, CHAT_CONTEXT)
    assert (output / "chat_template.jinja").read_text() == DEFAULT_TEMPLATE
    assert {"<|im_start|>", "<|im_end|>"} < set(folder.tokenizer.special_tokens)
    record = json.loads((output / "answers.json").read_text())
    assert record["questions"] == 3
    assert set(record) == {"questions", "most_frequent_answer", "before", "after"}
    assert set(record["after"]) == {"exact", "fact", "kinds", "both"}
    assert "of 3 held-out questions are answered right" in caplog.text
    kept = files(output)
    make_chat_demo(demo)
    assert files(output) == kept, "a second call does nothing"


@pytest.mark.slow
def test_an_interrupted_one_goes_on(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third step; the second call has the same data and trains only what is left."""
    from trainer.training import trainer as training

    steps = training.training_steps

    def with_signal(*arguments: object, **options: object) -> object:
        for step in steps(*arguments, **options):  # type: ignore[arg-type]
            if step.number == 3:
                signal.raise_signal(signal.SIGINT)
            yield step

    with monkeypatch.context() as patch:
        patch.setattr(training, "training_steps", with_signal)
        with pytest.raises(InterruptedRunError, match="stopped after step 3"):
            make_chat_demo(demo)
    work = demo.with_name("demo-chat.work")
    written = {path: path.stat().st_mtime_ns for path in [*work.glob("*.jsonl"), *work.glob("tokens/*.bin")]}
    assert len(written) == 4
    real, seen = pipeline.train, []
    ask, asked = chat._ask, []
    monkeypatch.setattr(pipeline, "train", lambda given: seen.append(given.checkpoints.resume) or real(given))
    monkeypatch.setattr(chat, "_ask", lambda *given: asked.append(given[-1]) or ask(*given))
    make_chat_demo(demo, keep=True)
    assert (seen, asked) == ([True], ["after"])
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert load_model_folder(demo.with_name("demo-chat")).provenance["training"]["steps"] == 4


def test_something_else_in_its_place_is_left_alone(demo: Path) -> None:
    other = demo.with_name("demo-chat")
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(TrainerError, match="demo-chat exists and is not a model folder"):
        make_chat_demo(demo)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
