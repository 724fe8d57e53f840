"""Runs that start from a model folder: its logits, its weights, its files; transformers is the oracle."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.bpe import Tokenizer
from shared.lm import ModelFolderError, load_model_folder, read_config
from shared.system.checksums import write_checksums
from tests.shared.lm.variants import VARIANTS, WrittenVariant
from trainer.components.extension import open_tokenizer
from trainer.components.loss import IGNORED
from trainer.components.parent import starting_from
from trainer.console.progress import progress
from trainer.errors import UsageError
from trainer.evaluation.evaluate import evaluate_inputs
from trainer.evaluation.scoring import score_tokens
from trainer.evaluation.windows import Window
from trainer.settings.encode import EncodeSettings
from trainer.settings.evaluation import EvaluateSettings, ScoringMachineSettings, ScoringSettings
from trainer.settings.train import TrainSettings
from trainer.tokens.encode import encode_files
from trainer.training.run import prepare_run
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]

FAST = ("qwen2", "mistral", "llama, biases, tied", "qwen3, biases", "smollm2", "linear, older", "llama3, older")
ROWS = 384  # more than the tokenizer's 290: padding


def write(name: str, folder: Path, tokenizer: Path, rows: int = ROWS) -> WrittenVariant:
    """A model that transformers writes, with the tokenizer of the token files."""
    variant = VARIANTS[name]
    written = dataclasses.replace(variant, changes={**variant.changes, "vocab_size": rows}).write(folder)
    for file in tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return written


@pytest.fixture(
    scope="module",
    params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def written(
    request: pytest.FixtureRequest, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> WrittenVariant:
    return write(request.param, tmp_path_factory.mktemp("parents") / "parent", tokenizer_folder)


def stored(folder: Path) -> dict[str, Tensor]:
    """The weights as they are in the files."""
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def digests(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def assert_bitwise_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert weight.dtype == expected[name].dtype, name
        assert torch.equal(weight.view(torch.uint8), expected[name].view(torch.uint8)), name


def records(settings: TrainSettings) -> list[dict[str, float]]:
    return [json.loads(line) for line in (settings.output / "metrics.jsonl").read_text().splitlines()]


def test_a_run_begins_with_the_folder(written: WrittenVariant, settings: TrainSettings, change: Change) -> None:
    """Logits of transformers, losses of `evaluate`; a rate of 0 leaves all as it was, for transformers too."""
    before = digests(written.folder)
    settings = change(starting_from(settings, written.folder), learning_rate=0.0, max_steps=3, eval_interval=5)
    settings = change(settings, context_length=16, batch_size=2, checkpoint_interval=0, eval_tokens=0)
    run = prepare_run(settings)
    with torch.no_grad():
        torch.testing.assert_close(run.model(written.prompt)[0], written.logits, rtol=0, atol=1e-4)
    inputs, targets = run.windows.batch(0, 2)

    train(settings)
    pairs = zip(inputs.numpy(), (target[target != IGNORED].numpy() for target in targets), strict=True)
    scored = [Window(np.append(row[: len(target)], target[-1]), len(target)) for row, target in pairs]
    folder = load_model_folder(written.folder, dtype=torch.float32)
    start, first, *_ = records(settings)
    assert first["loss"] == pytest.approx(score_tokens(folder.model, scored, device=run.device).nats.mean(), abs=1e-5)
    evaluation = EvaluateSettings(
        scoring=ScoringSettings(documents="packed", window=16), machine=ScoringMachineSettings(device="cpu")
    )
    with progress() as new_bar:
        report = evaluate_inputs(written.folder, [settings.data / "val.json"], evaluation, new_bar)
    assert start["step"] == 0
    assert start["validation_loss"] == pytest.approx(report.total.evaluation.loss, abs=1e-5)

    model = settings.output / "model"
    expected = stored(written.folder)
    assert_bitwise_equal(stored(model), expected)
    assert read_config(model) == read_config(written.folder)
    peer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(peer(written.prompt).logits[0], written.logits, rtol=0, atol=1e-4)
    parent = json.loads((model / "ownlm.json").read_text())["training"]["parent"]
    assert parent["name"] == "parent"
    assert parent["weights_sha256"] == {
        name: digest for name, digest in before.items() if name.endswith(".safetensors")
    }
    assert digests(written.folder) == before


TEMPLATE = "{% for m in messages %}<|a|>{{ m.content }}{% endfor %}{{ pad_token }}"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def chat(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A sharded bfloat16 model with a chat template, a padding token, and defaults for generating."""
    folder = tmp_path / "chat"
    write("qwen2", folder, tokenizer_folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = open_tokenizer(folder, ["<|pad|>"])
    tokenizer.save(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {
        "pad_token": "<|pad|>",
        "unk_token": "<absent>",
        "extra_special_tokens": ["<|pad|>"],
        "model_max_length": 512,
        "tokenizer_class": "X",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    generation = {"top_k": 20, "temperature": 0.6, "eos_token_id": [288, 290], "pad_token_id": 290, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps({**generation, "max_new_tokens": 64}))
    return folder


@pytest.fixture
def chat_run(chat: Path, settings: TrainSettings, change: Change, text_file: Path, tmp_path: Path) -> TrainSettings:
    """Ten steps from it, with two more tokens."""
    added = ("<|a|>", "<|b|>")
    tokens = tmp_path / "chat_tokens"
    encode_files([text_file], open_tokenizer(chat, added), tokens, EncodeSettings(val_fraction=0.1))
    started = starting_from(change(settings, data=tokens), chat, added)
    return change(started, context_length=16, dropout=0.1, eval_interval=4, keep_best=True, sample_interval=3)


def test_a_run_that_is_resumed_needs_no_parent(chat_run: TrainSettings, change: Change, chat: Path) -> None:
    whole = change(chat_run, output=chat_run.output.with_name("whole"))
    train(whole)
    train(change(chat_run, stop_after=5))
    shutil.rmtree(chat)
    model = train(change(chat_run, resume=True))
    assert_bitwise_equal(stored(model), stored(whole.output / "model"))
    files = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "ownlm.json")
    for name in files:
        assert (model / name).read_bytes() == (whole.output / "model" / name).read_bytes(), name
    names = ("step", "loss", "validation_loss", "sample")
    ours, theirs = ([[record.get(name) for name in names] for record in records(s)] for s in (chat_run, whole))
    assert ours == theirs


def test_a_longer_context_is_in_every_file_of_the_result(
    chat: Path, settings: TrainSettings, change: Change, tmp_path: Path
) -> None:
    """Of a run that was resumed, too, from its checkpoint without the parent."""
    own = read_config(chat).context_length
    started = change(starting_from(settings, chat, ["<|a|>"], extend_context=576), max_steps=3)
    assert own < started.model.context_length == 576
    started = change(started, batch_size=1, eval_interval=0, sample_interval=0)
    added = open_tokenizer(chat, ["<|a|>"])
    (tmp_path / "long.txt").write_text("the cat sat on the mat " * 2_000)
    encode_files([tmp_path / "long.txt"], added, tmp_path / "long", EncodeSettings())
    started = change(started, data=tmp_path / "long")
    train(change(started, stop_after=1))
    shutil.rmtree(chat)
    model = train(change(started, resume=True))
    assert read_config(model).context_length == 576
    assert AutoTokenizer.from_pretrained(model).model_max_length == 576
    folder = load_model_folder(model, dtype=torch.float32)
    ids = torch.arange(576)[None] % 280
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits
        torch.testing.assert_close(folder.model(ids), expected, rtol=0, atol=1e-4)


def test_a_run_that_had_no_parent_cannot_be_resumed_with_one(settings: TrainSettings, change: Change) -> None:
    model = train(change(settings, max_steps=5))
    with pytest.raises(UsageError, match="is of a run that did not start from a model folder: omit --init"):
        train(change(starting_from(settings, model), resume=True))


def test_what_only_the_parent_s_files_hold_is_in_the_result(chat_run: TrainSettings, chat: Path) -> None:
    expected = AutoTokenizer.from_pretrained(chat, tokenizer_class="PreTrainedTokenizerFast")
    model = train(chat_run)
    for folder in (model, *(chat_run.output / "checkpoints").iterdir()):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "<|a|>hi<|pad|>"
        assert (tokenizer.pad_token, tokenizer.model_max_length) == ("<|pad|>", 512)
        assert tokenizer.convert_tokens_to_ids(["<|a|>", "<|b|>"]) == [291, 292]
        assert tokenizer("the cat").input_ids == expected("the cat").input_ids
        assert len(tokenizer) == 293
        generation = json.loads((folder / "generation_config.json").read_text())
        kept = {"top_k": 20, "temperature": 0.6, "eos_token_id": [288, 290], "pad_token_id": 290, "max_new_tokens": 64}
        assert kept.items() <= generation.items()
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == ROWS
    assert load_model_folder(model).generation.eos_token_ids == (288, 290)


def test_the_lineage_of_a_model_is_kept(settings: TrainSettings, change: Change, tmp_path: Path) -> None:
    settings = change(settings, max_steps=3)
    first = train(settings)
    second = train(starting_from(change(settings, output=tmp_path / "second"), first))
    third = train(starting_from(change(settings, output=tmp_path / "third"), second))
    training = json.loads((third / "ownlm.json").read_text())["training"]
    parent = training["parent"]
    assert (parent["name"], parent["dtype"], parent["training"]["steps"]) == ("second/model", "float32", 3)
    digest = hashlib.sha256((second / "model.safetensors").read_bytes()).hexdigest()
    assert parent["weights_sha256"] == {"model.safetensors": digest}
    assert parent["training"]["parent"]["name"] == f"{settings.output.name}/model"
    assert "parent" not in parent["training"]["parent"]["training"]


def test_weights_that_a_product_would_not_keep_stay(
    settings: TrainSettings, change: Change, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Signs of zeros, and the smallest numbers of each dtype, under a learning rate of 0."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        write("smollm2", folder, tokenizer_folder)
        weights = {name: weight.to(dtype) for name, weight in stored(folder).items()}
        info = torch.finfo(dtype)
        row = weights["model.embed_tokens.weight"][300]  # of no token
        row[:5] = torch.tensor([-0.0, 0.0, info.tiny, info.tiny / 4, -info.tiny / 4])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        started = change(starting_from(settings, folder), learning_rate=0.0, max_steps=3, weight_decay=0.5)
        model = train(change(started, context_length=16, output=tmp_path / f"run {dtype}", checkpoint_interval=0))
        assert_bitwise_equal(stored(model), weights)
        assert json.loads((model / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_another_tokenizer_is_refused(
    chat: Path, settings: TrainSettings, change: Change, token_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    started = starting_from(settings, chat)
    theirs, ours = (Tokenizer.from_files(folder).fingerprint for folder in (chat, token_folder))
    with pytest.raises(UsageError, match=rf"the tokenizer {ours}, but the model in .* {theirs}: encode .* --tokenizer"):
        train(started)
    plain = tmp_path / "plain"
    write("smollm2", plain, token_folder)
    tokens = tmp_path / "tokens"
    encode_files([text_file], open_tokenizer(token_folder, ["<|a|>", "it's"]), tokens, EncodeSettings())
    with pytest.raises(UsageError, match=r"give --extend-tokens '<\|a\|>' --extend-tokens 'it'\"'\"'s'$"):
        train(change(starting_from(settings, plain), data=tokens))
    roles = json.loads((tokens / "tokenizer_config.json").read_text())
    (tokens / "tokenizer_config.json").write_text(json.dumps({**roles, "eos_token": "<|a|>"}))
    with pytest.raises(UsageError, match=r"end with the id 290, but those of the model in .* with 289: encode"):
        train(starting_from(change(settings, data=tokens), plain, ("<|a|>", "it's")))
    assert not settings.output.exists()


def test_a_run_never_writes_into_its_parent(chat_run: TrainSettings, change: Change, chat: Path) -> None:
    for output in (chat, chat / "run", chat.parent):
        with pytest.raises(UsageError, match="are parts of one folder, which the run would change"):
            train(change(chat_run, output=output, overwrite=True))


def edit_config(folder: Path, **values: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **values}))


def damage(folder: Path, fault: str) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file) if file.exists() else {}
    name = "model.layers.1.mlp.up_proj.weight"
    match fault:
        case "missing tensor":
            del weights[name]
            save_file(weights, file)
        case "wrong shape":
            save_file({**weights, name: weights[name].T.contiguous()}, file)
        case "not finite":
            weights[name][3, 4] = torch.nan
            save_file(weights, file)
        case "truncated":
            file.write_bytes(file.read_bytes()[:-1000])
        case "pickled":
            torch.save(weights, folder / "pytorch_model.bin")
            file.unlink()
        case "changed":
            write_checksums(folder)
            save_file({**weights, name: weights[name] + 1}, file)
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "small vocabulary":
            edit_config(folder, vocab_size=280)
        case "sliding window":
            edit_config(folder, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=16)
        case "GPT-2":
            edit_config(folder, model_type="gpt2", architectures=["GPT2LMHeadModel"])
        case "quantized":
            edit_config(folder, quantization_config={"bits": 4})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing tensor", "the weights lack model.layers.1.mlp.up_proj.weight"),
        ("wrong shape", r"up_proj.weight has the shape \[32, 48\], but config.json requires \[48, 32\]"),
        ("not finite", "up_proj.weight holds NaN or infinite weights"),
        ("truncated", "truncated, damaged or not a safetensors file"),
        ("pickled", "pytorch_model.bin is not read, since it may hold code"),
        ("changed", "is not what was written"),
        ("no tokenizer", "has neither a tokenizer.json nor a vocab.json"),
        ("small vocabulary", "the model has 280 tokens, but the tokenizer has ids up to 289"),
        ("sliding window", "sliding-window attention is not supported"),
        ("GPT-2", "'gpt2'"),
        ("quantized", "quantized weights are not supported"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    settings: TrainSettings, change: Change, tokenizer_folder: Path, tmp_path: Path, fault: str, message: str
) -> None:
    """By the name of the file and the fault, before anything is written."""
    folder = tmp_path / "parent"
    write("linear", folder, tokenizer_folder)
    started = change(starting_from(settings, folder), context_length=16)
    damage(folder, fault)
    before = digests(folder)
    with pytest.raises(ModelFolderError, match=message):
        train(started)
    assert not settings.output.exists()
    assert digests(folder) == before


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    settings: TrainSettings, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other architecture is advised."""
    folder = tmp_path / "parent"
    write("smollm2", folder, tokenizer_folder)
    started = starting_from(settings, folder)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("trainer.training.run.available_memory", lambda _: 1 << 20)
    with pytest.raises(UsageError, match=r"does not fit into memory: .*; the model is too large for this device"):
        train(started)
    assert not settings.output.exists()


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)])
def test_a_folder_of_other_dtypes_is_written_in_float32(
    settings: TrainSettings,
    change: Change,
    tokenizer_folder: Path,
    tmp_path: Path,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    folder = tmp_path / "parent"
    write("smollm2", folder, tokenizer_folder)
    weights = {name: weight.to(dtypes["norm" not in name]) for name, weight in stored(folder).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    started = change(starting_from(settings, folder), learning_rate=0.0, max_steps=3, context_length=16)
    model = train(change(started, checkpoint_interval=0))
    widest = json.loads((model / "ownlm.json").read_text())["training"]["parent"]["dtype"]
    assert widest == str(torch.promote_types(*dtypes)).removeprefix("torch.")
    assert_bitwise_equal(stored(model), {name: weight.float() for name, weight in weights.items()})
    assert json.loads((model / "config.json").read_text())["dtype"] == "float32"
