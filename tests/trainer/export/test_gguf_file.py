"""GGUF files: read back by `gguf`, and run by transformers, which reads the format by code of its own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.bpe import Tokenizer, train_bpe
from shared.bpe.patterns.named import BEFORE_SPACES
from shared.lm import GenerationDefaults, ModelConfig, Transformer, load_model_folder, save_model_folder
from shared.lm.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from trainer.errors import TrainerError
from trainer.export.gguf_file import Dtype, write_gguf

TEXT = "Once upon a time there was a little fox. The fox had 12 red balls, naïve 🦊 friends and «tea».\n\n\n  "
LLAMA = ModelConfig(
    vocab_size=340, context_length=64, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=96,
    tie_embeddings=False, initializer_range=0.2,
)  # fmt: skip
MODELS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tie_embeddings=True),
    "qwen2": replace(LLAMA, attention_bias="qkv", rope=RopeConfig(1e6)),
    "qwen3": replace(LLAMA, qk_norm=True, head_dim=128),  # what transformers takes where it reads no size
}
SCALINGS = {
    "linear": LinearScaling(2.0),
    "llama3": Llama3Scaling(8.0, 1.0, 4.0, 32),
    "yarn": YarnScaling(4.0, 16),
    "yarn with a factor": YarnScaling(4.0, 16, attention_factor=1.5),
}


@pytest.fixture(scope="module", params=["gpt2", "llama3", "qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_bpe([TEXT * 3], 330, special_tokens=["<|endoftext|>", "<|im_end|>"], pattern=request.param).tokenizer


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return train_bpe([TEXT * 3], 330, special_tokens=["<|endoftext|>", "<|im_end|>"]).tokenizer


def save(folder: Path, config: ModelConfig, tokenizer: Tokenizer, eos: str = "<|endoftext|>") -> Path:
    """A random model whose norms and biases are random too."""
    torch.manual_seed(0)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    generation = GenerationDefaults(temperature=0.7, eos_token_ids=(tokenizer.special_tokens[eos],))
    save_model_folder(folder, model=model, tokenizer=tokenizer, generation=generation, provenance={})
    return folder


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    model = load_model_folder(folder).model
    with torch.no_grad():
        return model(torch.tensor([ids]))[0]


def metadata(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same(tmp_path: Path, gpt2: Tokenizer, name: str) -> None:
    folder = save(tmp_path / "model", MODELS[name], gpt2)
    write_gguf(folder, tmp_path / "out" / "model.gguf", "f32")
    ids = gpt2.encode(TEXT)[:50]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(torch.tensor([ids])).logits[0], logits(folder, ids), rtol=1e-4, atol=1e-4)


def test_every_weight_comes_back(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = save(tmp_path / "model", replace(LLAMA, attention_bias="qkvo"), gpt2)
    weights = {name: tensor.numpy() for name, tensor in load_model_folder(folder).model.state_dict().items()}
    limits: dict[Dtype, float] = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 1 / 127}
    for dtype, limit in limits.items():
        write_gguf(folder, tmp_path / "model.gguf", dtype)
        found = {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(tmp_path / "model.gguf").tensors}
        assert len(found) == len(weights)
        embedding = weights["model.embed_tokens.weight"]
        assert np.abs(found["token_embd.weight"] - embedding).max() <= limit * np.abs(embedding).max()
        down = weights["model.layers.1.mlp.down_proj.weight"]
        assert np.abs(found["blk.1.ffn_down.weight"] - down).max() <= limit * np.abs(down).max()
        assert (found["output_norm.weight"] == weights["model.norm.weight"]).all()
        assert (found["blk.0.attn_v.bias"] == weights["model.layers.0.self_attn.v_proj.bias"]).all()
        queries = weights["model.layers.0.self_attn.q_proj.bias"].reshape(4, 2, 8)
        assert (found["blk.0.attn_q.bias"].reshape(4, 8, 2) == queries.swapaxes(1, 2)).all()


def test_rows_that_have_no_blocks_are_float16(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = save(tmp_path / "model", replace(LLAMA, d_ff=72), gpt2)
    write_gguf(folder, tmp_path / "model.gguf", "q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert kinds["blk.0.attn_norm.weight"] == "F32"


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rope_is_described(tmp_path: Path, gpt2: Tokenizer, name: str) -> None:
    folder = save(tmp_path / "model", replace(LLAMA, rope=RopeConfig(5e5, SCALINGS[name])), gpt2)
    write_gguf(folder, tmp_path / "model.gguf", "f32")
    found = metadata(tmp_path / "model.gguf")
    assert found["llama.rope.freq_base"] == 5e5
    if name == "llama3":
        [factors] = [t.data for t in GGUFReader(tmp_path / "model.gguf").tensors if t.name == "rope_freqs.weight"]
        assert factors.shape == (8,)
        assert (factors[0], factors[-1]) == (1, 8)  # fast channels are kept, slow ones are stretched in full
        return
    kind = "linear" if name == "linear" else "yarn"
    assert found["llama.rope.scaling.type"] == kind
    assert found["llama.rope.scaling.factor"] == (2 if name == "linear" else 4)
    if kind == "yarn":
        factor = 1.5 / (0.1 * np.log(4) + 1) if "factor" in name else 1
        assert found["llama.rope.scaling.attn_factor"] == pytest.approx(factor)


def test_yarn_that_llama_cpp_does_not_have_is_refused(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = save(tmp_path / "model", replace(LLAMA, rope=RopeConfig(5e5, YarnScaling(4.0, 16, beta_fast=16))), gpt2)
    with pytest.raises(TrainerError, match="beta_fast 32"):
        write_gguf(folder, tmp_path / "model.gguf", "f32")
    assert not list(tmp_path.glob("*.gguf*"))
    assert not list(tmp_path.glob(".*"))


def test_the_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = save(tmp_path / "model", LLAMA, tokenizer)
    assert write_gguf(folder, tmp_path / "out" / "model.gguf", "f16") == []
    found = metadata(tmp_path / "out" / "model.gguf")
    assert found["tokenizer.ggml.pre"] in ("gpt-2", "llama-bpe", "qwen2")
    assert found["tokenizer.ggml.tokens"][tokenizer.special_tokens["<|im_end|>"]] == "<|im_end|>"
    assert found["tokenizer.ggml.tokens"][-1] == "[PAD339]"
    assert found["tokenizer.ggml.eos_token_id"] == tokenizer.special_tokens["<|endoftext|>"]
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.chat_template" not in found
    if found["tokenizer.ggml.pre"] == "gpt-2":
        theirs = AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file="model.gguf")
        assert theirs(TEXT)["input_ids"] == tokenizer.encode(TEXT)


def test_the_chat_template_and_two_ends(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = save(tmp_path / "model", LLAMA, gpt2)
    (folder / "checksums.json").unlink()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": [329, 328, 5]}))
    [note] = write_gguf(folder, tmp_path / "model.gguf", "f32")
    assert "llama.cpp knows only some by name" in note
    found = metadata(tmp_path / "model.gguf")
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    assert (found["tokenizer.ggml.eos_token_id"], found["tokenizer.ggml.eot_token_id"]) == (329, 328)


@pytest.mark.parametrize("pattern", ["cl100k", "o200k", r"\w+|\W+"])
def test_a_pattern_that_llama_cpp_does_not_have_is_refused(tmp_path: Path, pattern: str) -> None:
    tokenizer = train_bpe([TEXT], 330, special_tokens=["<|endoftext|>", "<|im_end|>"], pattern=pattern).tokenizer
    folder = save(tmp_path / "model", LLAMA, tokenizer)
    with pytest.raises(TrainerError, match=r"which llama.cpp does not have: it has gpt2, llama3, qwen"):
        write_gguf(folder, tmp_path / "model.gguf", "f32")


def test_tokens_that_are_not_what_their_merges_give_are_refused(tmp_path: Path, gpt2: Tokenizer) -> None:
    """llama.cpp takes Llama 3's pretokens as they are, so all of them must be what merges give."""
    vocabulary = gpt2.vocabulary
    unreachable = {**vocabulary.tokens, 335: b"zebra"}
    llama3 = train_bpe([TEXT], 300, pattern="llama3").tokenizer.vocabulary.pattern
    tokenizer = Tokenizer(replace(vocabulary, tokens=unreachable, pattern=llama3))
    folder = save(tmp_path / "model", LLAMA, tokenizer)
    with pytest.raises(TrainerError, match="1 tokens such as 'zebra' are not what their own merges give"):
        write_gguf(folder, tmp_path / "model.gguf", "f32")


def test_a_weight_beyond_float16_is_named(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = save(tmp_path / "model", LLAMA, gpt2)
    loaded = load_model_folder(folder)
    with torch.no_grad():
        loaded.model.model.layers[1].mlp.down_proj.weight[0, 0] = 70_000
    shutil.rmtree(folder)
    save_model_folder(folder, model=loaded.model, tokenizer=gpt2, generation=loaded.generation, provenance={})
    with pytest.raises(TrainerError, match=r"blk.1.ffn_down.weight holds weights beyond the range of float16"):
        write_gguf(folder, tmp_path / "model.gguf", "f16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    write_gguf(folder, tmp_path / "model.gguf", "bf16")


def test_a_sentencepiece_vocabulary(tmp_path: Path, data_dir: Path) -> None:
    """Types, scores that fall with the rank, and the space before a text; transformers reads the same ids from it."""
    tokenizer = Tokenizer.from_files(data_dir / "models" / "stories260K" / "tok512.bin")
    folder = save(tmp_path / "model", replace(LLAMA, vocab_size=520), tokenizer, eos="</s>")
    assert write_gguf(folder, tmp_path / "out" / "model.gguf", "f16") == []
    found = metadata(tmp_path / "out" / "model.gguf")
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.add_space_prefix"]) == ("llama", True)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert [*zip(tokens[:4], kinds[:4], strict=True)] == [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<0x00>", 6)]
    assert (tokens[-1], kinds[-1], kinds[300]) == ("[PAD519]", 5, 1)
    by_rank = dict.fromkeys(tokenizer.vocabulary.merged)
    scores = [found["tokenizer.ggml.scores"][token] for token in by_rank]
    assert scores == sorted(scores, reverse=True)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file="model.gguf")
    assert theirs.encode(TEXT, add_special_tokens=False) == tokenizer.encode(TEXT)


def test_spaces_that_llama_cpp_treats_otherwise(tmp_path: Path, data_dir: Path) -> None:
    vocabulary = Tokenizer.from_files(data_dir / "models" / "stories260K" / "tok512.bin").vocabulary
    metaspace = replace(vocabulary, prepended_space=False, prefix_space=True, only_first=True)
    folder = save(tmp_path / "model", replace(LLAMA, vocab_size=512), Tokenizer(metaspace), eos="</s>")
    [note] = write_gguf(folder, tmp_path / "model.gguf", "f16")
    assert "also before one that begins with a space" in note
    last = max(vocabulary.tokens)
    spaces = {**vocabulary.tokens, last + 1: b"  "}
    space = vocabulary.ids[b" "]
    runs = replace(metaspace, tokens=spaces, merges=(*vocabulary.merges, (space, space)), pattern=BEFORE_SPACES)
    folder = save(tmp_path / "runs", replace(LLAMA, vocab_size=520), Tokenizer(runs), eos="</s>")
    with pytest.raises(TrainerError, match=r"splits text before every space, and llama.cpp would make b'  '"):
        write_gguf(folder, tmp_path / "model.gguf", "f16")
    unmade = replace(metaspace, merges=vocabulary.merges[1:])
    folder = save(tmp_path / "unmade", replace(LLAMA, vocab_size=512), Tokenizer(unmade), eos="</s>")
    with pytest.raises(TrainerError, match=r"there is no merge of its parts .*, which llama.cpp would make"):
        write_gguf(folder, tmp_path / "model.gguf", "f16")
