"""Training on conversations: what counts, against the model alone with each conversation."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shared.bpe import PATTERNS, AddedToken, Tokenizer, Vocabulary
from shared.chat import DEFAULT_SPECIAL_TOKENS, DEFAULT_TEMPLATE
from shared.lm import load_model_folder
from tests.trainer.runs_in_processes import Job, torchrun
from trainer.components.model import new_model
from trainer.conversations.template import choose_template
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.evaluate import evaluate_inputs
from trainer.settings.encode import EncodeSettings
from trainer.settings.evaluation import EvaluateSettings, ReadingSettings
from trainer.settings.train import TrainSettings
from trainer.tokens.dataset import open_training_data
from trainer.tokens.encode import encode_files
from trainer.tokens.packed_windows import PackedWindows
from trainer.tokens.token_file import TokenFile, TokenFileError
from trainer.training.trainer import train

CONTEXT = 160


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with token files of 80 conversations of different lengths, and the file they are from."""
    folder = tmp_path_factory.mktemp("chat")
    draw = np.random.default_rng(0)
    records = [
        {
            "messages": [
                {"role": role, "content": " ".join(draw.choice(["red", "blue", "cat"], draw.integers(1, 6)).tolist())}
                for _ in range(draw.integers(1, 3))
                for role in ("user", "assistant")
            ]
        }
        for _ in range(80)
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tokens = {byte: bytes([byte]) for byte in range(256)}
    added = tuple(
        AddedToken(256 + number, token) for number, token in enumerate(("<|endoftext|>", *DEFAULT_SPECIAL_TOKENS))
    )
    tokenizer = Tokenizer(
        Vocabulary(tokens=tokens, merges=(), added=added, pattern=PATTERNS["gpt2"], eos="<|endoftext|>")
    )
    settings = EncodeSettings(chat=True, val_fraction=0.2, threads=1, context_length=CONTEXT)
    template = choose_template(None, folder, tokenizer)
    report = encode_files([folder / "chat.jsonl"], tokenizer, folder / "tokens", settings, template=template)
    assert not report.findings
    return folder


Change = Callable[..., TrainSettings]


@pytest.fixture
def run(chat: Path, settings: TrainSettings, change: Change) -> TrainSettings:
    return change(
        settings,
        data=chat / "tokens",
        context_length=CONTEXT,
        max_steps=6,
        total_batch_size=8,
        batch_size=8,
        eval_tokens=0,
    )


def records(settings: TrainSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.output / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_model_folder(folder).model.state_dict()


def documents(file: TokenFile) -> list[tuple[list[int], list[int]]]:
    """The ids and the mask of each conversation."""
    ids, mask = file.tokens, file.read_mask(0, len(file))
    ends = np.flatnonzero(ids == file.manifest.end_of_text_id) + 1
    parts = zip(np.split(ids, ends)[:-1], np.split(mask, ends)[:-1], strict=True)
    return [(part.tolist(), counted.tolist()) for part, counted in parts]


def test_the_first_loss_is_the_mean_over_the_answers_of_the_whole_batch(run: TrainSettings, change: Change) -> None:
    """Each conversation by itself, in float64: what stands before it in its window, and in which pass, is no matter."""
    settings = change(run, max_steps=1, batch_size=2, warmup_steps=0)
    train(settings)
    data = open_training_data(run.data)
    windows = PackedWindows(data.train, CONTEXT, 0)
    model = new_model(settings.model, data.tokenizer.vocab_size, 0).double()
    inputs, _ = windows.batch(0, 8)
    end = data.train.manifest.end_of_text_id
    masks = {tuple(ids[:-1]): mask for ids, mask in documents(data.train)}
    nats, count = 0.0, 0
    for row in inputs.tolist():
        begin, is_first = 0, True
        while begin < CONTEXT and row[begin]:
            stop = next((place for place in range(begin, CONTEXT) if row[place] in {0, end}), CONTEXT)
            ids = row[begin:stop]
            mask = masks[tuple(ids)]
            # After the end before it, where there is one; the first of a window begins as it is served.
            before = [] if is_first else [end]
            logits = model(torch.tensor([before + ids]))[0, len(before) :]
            for place in range(1, len(ids)):
                if mask[place]:
                    nats += F.cross_entropy(logits[place - 1], torch.tensor(ids[place])).item()
                    count += 1
            begin, is_first = stop + 1, False
    [record] = [each for each in records(settings) if "loss" in each]
    assert record["counted_tokens"] == count
    assert record["loss"] == pytest.approx(nats / count, abs=1e-6)


def test_passes_make_no_difference(run: TrainSettings, change: Change, tmp_path: Path) -> None:
    """Their windows have different numbers of answers' tokens, and each token weighs the same."""
    found = []
    for size in (1, 8):
        settings = change(run, batch_size=size, output=tmp_path / f"by-{size}")
        train(settings)
        found.append([each["loss"] for each in records(settings) if "loss" in each])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_resuming_is_bitwise_and_the_model_has_its_template(run: TrainSettings, change: Change, tmp_path: Path) -> None:
    whole = train(run)
    halves = change(run, output=tmp_path / "halves")
    train(change(halves, stop_after=3))
    again = train(change(halves, resume=True))
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(again)[name]), name
    assert (whole / "chat_template.jinja").read_text() == DEFAULT_TEMPLATE
    assert (run.output / "checkpoints/step-00000006/chat_template.jinja").exists()
    generation = json.loads((whole / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [256, 258]
    assert 'data_order = "packed"' in (run.output / "train.toml").read_text()


def test_evaluate_scores_as_training_does(chat: Path, run: TrainSettings, change: Change) -> None:
    """Token files and the conversations themselves; the validation conversations are those of the file's numbers."""
    settings = change(run, eval_interval=6)
    model = train(settings)
    [validation] = [each["validation_loss"] for each in records(settings) if "validation_loss" in each]

    def quiet(*_: Any, **__: Any) -> Callable[..., None]:
        return lambda *_: None

    report = evaluate_inputs(model, [chat / "tokens/val.json"], EvaluateSettings(), quiet)
    file = TokenFile.open(chat / "tokens", "val")
    assert file.manifest.has_mask
    assert report.total.evaluation.tokens == file.manifest.counted
    assert report.total.evaluation.loss == pytest.approx(validation, abs=1e-6)
    both = [chat / "tokens/val.json", chat / "tokens/train.json"]
    scored = evaluate_inputs(model, both, EvaluateSettings(), quiet).total
    reading = EvaluateSettings(reading=ReadingSettings(chat=True))
    given = evaluate_inputs(model, [chat / "chat.jsonl"], reading, quiet).total
    assert (scored.documents, given.documents) == (80, 80)
    assert scored.evaluation.tokens == given.evaluation.tokens
    assert scored.evaluation.nats == pytest.approx(given.evaluation.nats, rel=1e-6)
    assert given.answers_only


def test_other_orders_take_masks_too(run: TrainSettings, change: Change) -> None:
    settings = change(run, data_order="epochs", max_steps=3)
    train(settings)
    assert 0 < records(settings)[-1]["counted_tokens"] < 3 * 8 * CONTEXT
    assert math.isfinite(records(settings)[0]["loss"])


def test_what_does_not_go_together_is_refused(chat: Path, run: TrainSettings, change: Change, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="do not fit into a context of 32 tokens"):
        train(change(run, context_length=32))
    with pytest.raises(UsageError, match="--context-schedule cuts windows"):
        train(change(run, context_schedule="32:3"))
    template = chat / "tokens/chat_template.jinja"
    template.write_text(DEFAULT_TEMPLATE + " ")
    try:
        with pytest.raises(TokenFileError, match="another chat template"):
            train(run)
    finally:
        template.write_text(DEFAULT_TEMPLATE)


@pytest.mark.parametrize("name", ["train-00000.mask", "train-00000.bin"])
def test_a_mask_that_was_changed_is_refused(
    chat: Path, run: TrainSettings, change: Change, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "tokens"
    shutil.copytree(chat / "tokens", folder)
    data = bytearray((folder / name).read_bytes())
    data[10] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(TokenFileError, match=f"{name} is not what was written"):
        train(change(run, data=folder))
    (folder / "train-00000.mask").write_bytes(data[:-1])
    with pytest.raises(TokenFileError, match=r"train-00000.mask has .* bytes, but its manifest says"):
        train(change(run, data=folder))
    (folder / "train-00000.mask").unlink()
    with pytest.raises(TokenFileError, match=r"train-00000.mask cannot be read"):
        train(change(run, data=folder))


@pytest.mark.slow
def test_two_processes_equal_one(run: TrainSettings, change: Change, tmp_path: Path) -> None:
    one = change(run, batch_size=4, output=tmp_path / "one")
    train(one)
    two = change(run, batch_size=4, output=tmp_path / "two")
    done = torchrun(tmp_path / "jobs", [Job(two)])
    assert done.returncode == 0, done.stderr
    losses = [[each["loss"] for each in records(settings) if "loss" in each] for settings in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert records(one)[-1]["counted_tokens"] == records(two)[-1]["counted_tokens"]


def test_validation_that_would_count_nothing_is_refused(run: TrainSettings, change: Change) -> None:
    with pytest.raises(UsageError, match=r"--eval-tokens \(3\) covers no answer in the validation tokens: give more"):
        train(change(run, eval_tokens=3))
