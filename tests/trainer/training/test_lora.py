"""Runs of LoRA: what is frozen, what is trained, and what is written; peft is the oracle."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shared.lm import Transformer, load_model_folder, save_model_folder
from trainer.components.lora import AdaptedLinear, merged_model, trained_parameters
from trainer.components.parent import starting_from
from trainer.errors import UsageError
from trainer.settings.train import TrainSettings
from trainer.training.run import prepare_run
from trainer.training.trainer import Trainer, train

Change = Callable[..., TrainSettings]


BASES = ("tied", "untied, bfloat16")


@pytest.fixture(scope="module")
def bases(token_folder: Path, change: Change, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trained model folders: one in float32 as we write it, and one in bfloat16."""
    folder = tmp_path_factory.mktemp("bases")
    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "d_ff": 48, "context_length": 16}
    for name in BASES:
        tied = name == "tied"
        options = {"max_steps": 4, "warmup_steps": 1, "device": "cpu", "tie_embeddings": tied, "qk_norm": tied}
        train(change(TrainSettings(data=token_folder, output=folder / name), **shape, **options))
    found = load_model_folder(folder / BASES[1] / "model")
    narrow = folder / "narrow"
    save_model_folder(
        narrow, model=found.model.bfloat16(), tokenizer=found.tokenizer, generation=found.generation, provenance={}
    )
    return {BASES[0]: folder / BASES[0] / "model", BASES[1]: narrow}


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest, bases: dict[str, Path]) -> Path:
    return bases[request.param]


@pytest.fixture
def lora(base: Path, settings: TrainSettings, change: Change) -> TrainSettings:
    return change(starting_from(settings, base), context_length=16, lora_rank=4, learning_rate=1e-2)


@pytest.fixture
def tied(bases: dict[str, Path], settings: TrainSettings, change: Change) -> TrainSettings:
    return change(starting_from(settings, bases[BASES[0]]), context_length=16, lora_rank=4, learning_rate=1e-2)


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def bits(weights: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: weight.view(torch.uint8).numpy().tobytes() for name, weight in weights.items()}


def losses(settings: TrainSettings) -> list[float]:
    lines = map(json.loads, (settings.output / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_it_begins_as_the_base_and_trains_the_adapters_alone(
    base: Path, lora: TrainSettings, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(prepare_run(lora))
    tokens = torch.arange(16).unsqueeze(0)
    plain = load_model_folder(base, dtype=torch.float32).model
    with torch.no_grad():
        assert torch.equal(trainer.model(tokens), plain(tokens))
    with caplog.at_level(logging.INFO):
        trainer.train()
    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == {"lora_A", "lora_B"}
    assert len(trained) == 2 * 7 * 2
    assert all(p.any() for p in trained.values())
    assert len(trainer.optimizer.state) == len(trained)
    frozen = {name: p for name, p in trainer.model.named_parameters() if name not in trained}
    expected = plain.state_dict()
    assert all(torch.equal(p, expected[name]) and p.grad is None for name, p in frozen.items())
    number = 2 * 4 * (2 * 64 + 2 * 48 + 3 * 80)  # layers, rank, sides of q and o, k and v, and the feed-forward's
    assert sum(p.numel() for p in trained.values()) == number == trained_parameters(plain.config, lora.lora)
    assert f"LoRA: {number:,} parameters are trained, {100 * number / plain.config.num_parameters:.2f} %" in caplog.text
    record = json.loads((lora.output / "run.json").read_text())
    assert (record["parameters"], record["trained_parameters"]) == (plain.config.num_parameters, number)
    assert losses(lora)[-1] < losses(lora)[0]


def test_what_is_written_is_the_base_with_the_adapter_in_it(base: Path, lora: TrainSettings, change: Change) -> None:
    trainer = Trainer(prepare_run(change(lora, lora_alpha=8.0)))
    model = trainer.train()
    before, after = stored(base), stored(model)
    assert {name: (w.dtype, w.shape) for name, w in before.items()} == {
        name: (w.dtype, w.shape) for name, w in after.items()
    }
    adapter = load_file(lora.output / "adapter" / "adapter_model.safetensors")
    for name, weight in before.items():
        a, b = (adapter.get(f"base_model.model.{name.removesuffix('weight')}lora_{x}.weight") for x in "AB")
        if a is None or b is None:
            assert torch.equal(after[name], weight), name
        else:
            assert not torch.equal(after[name], weight), name
            torch.testing.assert_close(after[name], (weight.float() + 2.0 * (b @ a)).to(weight.dtype), msg=name)
    tokens = torch.arange(16).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(trainer.model.eval()(tokens), merged_model(trainer.model)(tokens), rtol=0, atol=1e-5)
    assert type(merged_model(trainer.model)) is Transformer
    checkpoint = lora.output / "checkpoints" / "step-00000010"
    assert bits(stored(checkpoint)) == bits(after)
    config = json.loads((lora.output / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8.0, str(base))
    parent = json.loads((lora.output / "adapter" / "ownlm.json").read_text())["training"]["parent"]
    assert parent["weights_sha256"].keys() == {"model.safetensors"}


def test_a_rate_of_0_leaves_every_bit(base: Path, lora: TrainSettings, change: Change) -> None:
    """A zero with a sign, too, which adding 0 would take away."""
    model = train(change(lora, learning_rate=0.0, max_steps=3))
    assert bits(stored(model)) == bits(stored(base))


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16, dropout": {"dtype": "bfloat16", "dropout": 0.2},
    "checkpointing, documents apart": {"checkpoint_activations": True, "document_mask": True, "total_batch_size": 8},
    "attention, muon": {"lora_targets": "q_proj,v_proj", "optimizer": "muon"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    tied: TrainSettings, change: Change, options: dict[str, Any]
) -> None:
    whole = change(tied, **options)
    train(whole)
    copy = change(whole, output=tied.output.with_name("copy"), resume=True)
    shutil.copytree(whole.output, copy.output)
    for path in ("checkpoints/step-00000010", "model", "adapter"):
        shutil.rmtree(copy.output / path)
    torch.manual_seed(99)
    train(copy)
    assert losses(copy) == losses(whole)
    for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        assert (copy.output / file).read_bytes() == (whole.output / file).read_bytes()


def test_checkpointing_changes_no_bit(tied: TrainSettings, change: Change) -> None:
    thrifty = change(tied, checkpoint_activations=True, output=tied.output.with_name("thrifty"))
    assert bits(stored(train(tied))) == bits(stored(train(thrifty)))
    assert losses(tied) == losses(thrifty)


def test_an_adapter_goes_on_beside_its_own_base_only(
    bases: dict[str, Path], tied: TrainSettings, change: Change, tmp_path: Path
) -> None:
    train(change(tied, stop_after=5))
    moved = shutil.copytree(bases[BASES[0]], tmp_path / "moved")
    again = change(tied, resume=True, init=moved)
    file = moved / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (moved / "checksums.json").unlink()
    with pytest.raises(
        UsageError, match=r"its adapter belongs to a model\.safetensors with the SHA-256 .* but in --init"
    ):
        train(again)
    content[-1] ^= 1
    file.write_bytes(content)
    train(again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 0}, "--lora-rank must be at least 1; got 0"),
        ({"lora_rank": 17}, r"--lora-rank \(17\) must be at most 16: k_proj has a weight of 16 x 32"),
        (
            {"lora_targets": "q_proj,embed_tokens"},
            "--lora-targets must be all-linear, or some of .*; got 'embed_tokens'",
        ),
        ({"lora_targets": ""}, "--lora-targets must be all-linear, .*; got ''"),
        ({"lora_alpha": 0.0}, "--lora-alpha must be above 0"),
        ({"lora_alpha": -1.0}, "--lora-alpha must be a finite number of at least 0"),
        ({"lora_rank": None, "lora_targets": "q_proj"}, "--lora-targets is an option of LoRA: give --lora-rank"),
        ({"parallel": "fsdp"}, "use --parallel ddp"),
        ({"embedding_learning_rate": 1e-3}, "--embedding-learning-rate has no effect with --lora-rank"),
        ({"extend_tokens": ("<|x|>",)}, "--extend-tokens adds rows to the embedding, which LoRA would never train"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    tied: TrainSettings, change: Change, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        prepare_run(change(tied, **options))
    assert not tied.output.exists()


def test_a_model_that_is_new_has_nothing_to_adapt(settings: TrainSettings, change: Change) -> None:
    with pytest.raises(UsageError, match="--lora-rank adapts an existing model: give its folder with --init"):
        change(settings, lora_rank=4)


def test_layers_that_are_not_chosen_have_no_adapter(tied: TrainSettings, change: Change) -> None:
    model = prepare_run(change(tied, lora_targets=" v_proj, down_proj")).model
    names = {name for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear)}
    assert names == {f"model.layers.{n}.{name}" for n in range(2) for name in ("self_attn.v_proj", "mlp.down_proj")}


def test_overwriting_a_run_deletes_its_adapter(tied: TrainSettings, change: Change, settings: TrainSettings) -> None:
    train(change(tied, max_steps=1, warmup_steps=0))
    assert (tied.output / "adapter").is_dir()
    train(change(settings, max_steps=1, warmup_steps=0, overwrite=True))
    assert not (tied.output / "adapter").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers for it
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj,down_proj"])
def test_peft_opens_the_adapter_with_equal_logits(
    base: Path, lora: TrainSettings, change: Change, targets: str
) -> None:
    """On the base, and merged by peft; the logits are those of our merged folder."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = load_model_folder(train(change(lora, lora_targets=targets, max_steps=6)), dtype=torch.float32).model
    tokens = torch.randint(0, 290, (2, 16))
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, lora.output / "adapter")
    limit = 1e-5 if stored(base)["model.norm.weight"].dtype == torch.float32 else 3e-2  # merged weights are rounded
    with torch.no_grad():
        ours, theirs = model(tokens), adapted(tokens).logits
        with adapted.disable_adapter():
            assert not torch.allclose(adapted(tokens).logits, theirs, rtol=0, atol=2 * limit)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=limit)
        torch.testing.assert_close(adapted.merge_and_unload()(tokens).logits, theirs, rtol=0, atol=1e-5)
