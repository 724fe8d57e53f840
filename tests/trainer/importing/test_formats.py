"""Models of other formats, written here by their published layouts, compute the same when imported."""

import json
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from shared.bpe import train_bpe
from shared.lm import load_model_folder
from tests.trainer.importing import writers as w
from trainer.commands.import_model import ImportSettings, import_model
from trainer.errors import TrainerError, UsageError
from trainer.importing import foreign

IDS = torch.from_numpy(np.random.default_rng(1).integers(0, 300, w.CONTEXT))
FREQUENCIES = 10_000.0 ** -(torch.arange(0, w.HEAD, 2).double() / w.HEAD)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_bpe(["Once upon a time there was a fox."] * 3, 280, special_tokens=["<|endoftext|>"]).tokenizer.save(folder)
    return folder


Run = Callable[..., Path]


@pytest.fixture
def run(tokenizer: Path, tmp_path: Path) -> Run:
    def run(source: Path, **options: Any) -> Path:
        import_model(source, tmp_path / "out", settings=ImportSettings(tokenizer=tokenizer, **options))
        return tmp_path / "out"

    return run


def difference(folder: Path, expected: Tensor, *, research: bool = False) -> float:
    """From what our model computes in float32, and, where it opens the folder, transformers."""
    with torch.no_grad():
        ours = load_model_folder(folder, research=research, dtype=torch.float32).model(IDS[None])[0]
        found = [ours.double()[:, : expected.shape[1]]]
        if not research:
            peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            found.append(peer(IDS[None]).logits[0].double())
    return max(float((logits - expected).abs().max() / expected.abs().max()) for logits in found)


@pytest.mark.parametrize("tied", [True, False], ids=["shared classifier", "own classifier"])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_llama2c(run: Run, tmp_path: Path, version: int, *, tied: bool) -> None:
    weights = w.llama_weights(tied=tied)
    w.write_llama2c(tmp_path / "model.bin", weights, version)
    folder = run(tmp_path / "model.bin")
    meant = w.dequantized(weights) if version == 2 else weights
    assert difference(folder, w.llama_logits(meant, IDS)) < 1e-5
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is tied
    imported = json.loads((folder / "ownlm.json").read_text())["training"]["imported"]
    assert (imported["file"], imported["format"]) == ("model.bin", f"llama2.c, version {version}")
    assert f"llama2.c, version {version}" in ModelCard.load(folder / "README.md").content


THEIRS = {
    "model.": "", "embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip


@pytest.fixture(scope="module")
def stories260k(data_dir: Path) -> dict[str, Tensor]:
    """A published model under llama2.c's names."""
    weights = {}
    for hf, weight in load_file(data_dir / "models" / "stories260K" / "hf_converted" / "model.safetensors").items():
        name = reduce(lambda text, pair: text.replace(*pair), THEIRS.items(), hf)
        is_rotated = name.endswith(("wq.weight", "wk.weight"))  # Hugging Face's halves are neighbors there
        weights[name] = weight.reshape(-1, 2, 4, 64).transpose(1, 2).reshape(weight.shape) if is_rotated else weight
    return weights | {"output.weight": weights["tok_embeddings.weight"]}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_published_model_of_llama2c(
    stories260k: dict[str, Tensor], data_dir: Path, run: Run, tmp_path: Path, version: int
) -> None:
    """Its logits were computed apart from all of this; the README of the reference data has their source."""
    sizes = (64, 172, 5, 8, 4, 512, 512)
    w.write_llama2c(tmp_path / "stories260K.bin", stories260k, version, sizes=sizes, group=4)
    folder = run(tmp_path / "stories260K.bin")
    reference = np.load(data_dir / "models" / "stories260K" / "greedy_reference.npz")
    expected = torch.from_numpy(reference["logits_first64"])
    with torch.no_grad():
        tokens = torch.from_numpy(reference["tokens"][:64].astype(np.int64))
        found = load_model_folder(folder).model(tokens[None])[0].double()
    assert (found - expected).abs().max() < (0.05 if version == 2 else 1e-5) * expected.abs().max()


@pytest.mark.parametrize(
    ("parts", "rows", "params"),
    [(1, True, {}), (2, True, {"rope_theta": 10_000.0}), (2, False, {"vocab_size": w.VOCABULARY})],
    ids=["one part", "two parts, Llama 3", "two parts, Llama 2"],
)
def test_meta(run: Run, tmp_path: Path, parts: int, params: dict[str, Any], *, rows: bool) -> None:
    weights = w.llama_weights()
    w.write_meta(tmp_path / "llama", weights, parts=parts, rows=rows, **params)
    folder = run(tmp_path / "llama", context_length=w.CONTEXT)
    assert difference(folder, w.llama_logits(weights, IDS)) < 1e-5


@pytest.mark.parametrize("is_large", [False, True])
def test_meta_in_bfloat16_and_scaled(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:  # then, the logits are compared in bfloat16
        monkeypatch.setattr(foreign, "_IN_FLOAT32", 0)
    weights = w.llama_weights(dtype=torch.bfloat16)
    w.write_meta(tmp_path / "llama", weights, use_scaled_rope=True, rope_theta=5e5)
    folder = run(tmp_path / "llama" / "consolidated.00.pth", context_length=131_072)
    frequencies = w.scaled(5e5 ** -(torch.arange(0, w.HEAD, 2).double() / w.HEAD))
    assert difference(folder, w.llama_logits(weights, IDS, frequencies)) < 1e-5
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    imported = json.loads((folder / "ownlm.json").read_text())["training"]["imported"]
    share = float(imported["check"].removesuffix(" of the largest").rpartition(" ")[2])
    low, high = (1e-3, 1e-1) if is_large else (1e-8, 1e-5)  # processors add in other orders
    assert low < share < high


@pytest.mark.parametrize(
    ("kind", "family", "settings"),
    [
        ({}, "llama", {}),
        ({"older": True}, "llama", {}),
        ({"biases": True}, "qwen2", {"attn_bias": True}),
        ({"norms": True}, "qwen3", {"norm_qk": True}),
    ],
    ids=["llama", "older layout", "qwen2", "qwen3"],
)
def test_litgpt(run: Run, tmp_path: Path, kind: dict[str, bool], family: str, settings: dict[str, Any]) -> None:
    weights = w.litgpt_weights(**kind)
    folder = run(w.write_litgpt(tmp_path / "lit", weights, **settings))
    assert json.loads((folder / "config.json").read_text())["model_type"] == family
    assert difference(folder, w.litgpt_logits(weights, IDS)) < 1e-5


def test_litgpt_tied_and_scaled(run: Run, tmp_path: Path) -> None:
    weights = w.litgpt_weights()
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    folder = run(w.write_litgpt(tmp_path / "lit", weights, rope_condense_ratio=4))
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    assert difference(folder, w.litgpt_logits(weights, IDS, FREQUENCIES / 4)) < 1e-5


def write_nanochat(folder: Path, weights: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir()
    torch.save({f"_orig_mod.{name}": weight for name, weight in weights.items()}, folder / "model_000007.pt")
    (folder / "meta_000007.json").write_text(json.dumps({"step": 7, "model_config": w.NANOCHAT | config}))
    return folder / "model_000007.pt"


@pytest.mark.parametrize("as_folder", [True, False])
def test_nanochat(run: Run, tmp_path: Path, *, as_folder: bool) -> None:
    weights = w.nanochat_weights()
    file = write_nanochat(tmp_path / "d2", weights)
    folder = run(file.parent) if as_folder else run(file, strip_wrappers=True)
    assert difference(folder, w.nanochat_logits(weights, IDS), research=True) < 1e-5


def test_newer_nanochat_is_refused_by_what_it_has(run: Run, tmp_path: Path) -> None:
    weights = w.nanochat_weights() | {"resid_lambdas": torch.ones(2), "smear_gate.weight": torch.ones(1, 24)}
    with pytest.raises(
        TrainerError, match="has factors of the residual stream, embeddings mixed with the token before"
    ):
        run(write_nanochat(tmp_path / "d2", weights))
    with pytest.raises(TrainerError, match="window_pattern"):
        run(write_nanochat(tmp_path / "d3", w.nanochat_weights(), window_pattern="SSSL"))


def refused(run: Run, source: Path, reason: str, error: type[TrainerError] = TrainerError, **options: Any) -> None:
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with pytest.raises(error, match=re.escape(reason)):
        run(source, **options)
    assert not any("out" in path.name for path in source.parent.iterdir())
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}


def test_other_architectures_are_refused_by_name(run: Run, tmp_path: Path) -> None:
    def state(name: str, *names: str) -> Path:
        torch.save({n: torch.ones(2, 2) for n in names}, tmp_path / name)
        return tmp_path / name

    gpt2 = state("gpt2.pt", "transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight")
    refused(run, gpt2, "GPT-2's architecture (learned positions")
    refused(run, state("neox.pt", "gpt_neox.embed_in.weight"), "GPT-NeoX's architecture")
    refused(run, state("pytorch_model.bin", "model.layers.0.mlp.up_proj.weight"), "save_pretrained", UsageError)
    refused(run, state("ckpt.pt", "tok_embeddings.weight"), "export.py", UsageError)
    refused(run, state("x.pth", "transformer.h.0.attn.qkv.weight"), "lit_model.pth and model_config", UsageError)
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0")
    refused(run, tmp_path / "m.gguf", "gguf_file")
    refused(run, tmp_path / "none", "cannot be read: No such file")
    (tmp_path / "hf").mkdir()
    refused(run, tmp_path / "hf", "holds neither lit_model.pth")
    (tmp_path / "hf" / "config.json").write_text("{}")
    refused(run, tmp_path / "hf", "needs no import", UsageError)


def test_options_that_the_files_answer_are_refused(run: Run, tokenizer: Path, tmp_path: Path) -> None:
    w.write_llama2c(tmp_path / "model.bin", w.llama_weights(), 1)
    refused(run, tmp_path / "model.bin", "--num-heads: ", UsageError, num_heads=4)
    w.write_meta(tmp_path / "llama", w.llama_weights())
    refused(run, tmp_path / "llama", "pass --context-length", UsageError)
    refused(run, tmp_path / "llama", "--rope-theta: ", UsageError, context_length=8, rope_theta=1e4)
    train_bpe(["ab"], 600, special_tokens=[f"<|{n}|>" for n in range(300)]).tokenizer.save(tmp_path / "large")
    settings = ImportSettings(tokenizer=tmp_path / "large")
    with pytest.raises(UsageError, match=r"has ids up to 55\d, but the model has 448 tokens"):
        import_model(tmp_path / "model.bin", tmp_path / "out", settings=settings)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"norm_class_name": "LayerNorm"}, "\"norm_class_name\" is 'LayerNorm'"),
        ({"mlp_class_name": "LLaMAMoE"}, '"mlp_class_name"'),
        ({"final_logit_softcapping": 30.0}, '"final_logit_softcapping" is 30.0'),
        ({"sliding_window_size": 8}, '"sliding_window_size"'),
        ({"name": "Gemma-2b"}, "Gemma"),
        ({"a_new_switch": 3}, '"a_new_switch" is 3'),
        ({"rope_adjustments": {"factor": 2, "beta_fast": 32}}, "YaRN"),
        ({"rope_adjustments": {"factor": 0}}, "factor"),
        ({"rope_adjustments": 7}, "keys"),
        ({"n_head": 0}, "num_heads must be"),
        ({"n_head": "4"}, "model_config.yaml"),
        ({"head_size": 10**9}, "head_dim"),
        ({"n_layer": 3}, "the file lacks transformer.h.2."),
        ({"n_layer": 1}, "the file holds transformer.h.1."),
        ({"padded_vocab_size": 512}, "transformer.wte.weight has the shape [448, 32], expected [512, 32]"),
        ({"intermediate_size": 10**6}, "has the shape"),
        ({"n_query_groups": 4}, "rows of queries"),
        ({"attention_scores_scalar": 3}, "attention_scores_scalar"),
    ],
)
def test_what_litgpt_has_beyond_a_llama(run: Run, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    refused(run, w.write_litgpt(tmp_path / "lit", w.litgpt_weights(), **changes), reason)


def test_metas_damaged_folders(run: Run, tmp_path: Path) -> None:
    def folder(name: str, parts: int = 1, **params: Any) -> Path:
        w.write_meta(tmp_path / name, w.llama_weights(), parts=parts, **params)
        return tmp_path / name

    def is_refused(path: Path, reason: str) -> None:
        refused(run, path, reason, context_length=w.CONTEXT)

    is_refused(folder("quantized", quantization_args={"group_size": 32}), '"quantization_args"')
    is_refused(folder("moe", moe={"num_experts": 8}), '"moe"')
    is_refused(folder("vocab", vocab_size=99), "the embedding has 448 rows")
    is_refused(folder("layers", n_layers=1), "the file holds layers.1.")
    is_refused(folder("heads", n_heads=0), '"n_heads" must be')
    is_refused(folder("text", norm_eps="a"), "params.json")
    gap = folder("gap", 2)
    (gap / "consolidated.00.pth").unlink()
    is_refused(gap, "without gaps; found consolidated.01.pth")
    one = folder("one of two", 2)
    (one / "consolidated.01.pth").unlink()
    is_refused(one, "parts are missing: those there have 16 of 32 rows")
    other = folder("other", 2)
    state = torch.load(other / "consolidated.01.pth")
    torch.save(state | {"norm.weight": state["norm.weight"] + 1}, other / "consolidated.01.pth")
    is_refused(other, "norm.weight differs between the parts")
    torch.save({"norm.weight": state["norm.weight"]}, other / "consolidated.01.pth")
    is_refused(other, "other names than consolidated.00.pth")
    bare = folder("bare")
    (bare / "params.json").unlink()
    is_refused(bare, "params.json: the file is missing")
    (bare / "params.json").write_text("[1]")
    is_refused(bare, "params.json")


def test_a_claim_of_more_numbers_than_there_are(run: Run, tmp_path: Path) -> None:
    huge = torch.ones(1).expand(1 << 20, 1 << 20)
    torch.save(w.llama_weights() | {"norm.weight": huge}, tmp_path / "consolidated.00.pth")
    (tmp_path / "params.json").write_text('{"dim": 32, "n_heads": 4}')
    with pytest.raises(TrainerError, match="claims the shape"):
        run(tmp_path / "consolidated.00.pth", context_length=8)
