"""A model folder of ours as a GGUF file, which llama.cpp reads."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, path: Path, *, q8_0: bool) -> None:
    """Write the folder's Llama-shaped model; matrices in float32, or as Q8_0, as llama.cpp's own converter has them."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(_rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if q8_0 else gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder, config["vocab_size"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        data = _interleaved(tensor, next((heads[key] for key in heads if key in name), 0)).float().numpy()
        if q8_0 and data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rope_theta(config: dict) -> float:
    return float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])


def _interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of queries and keys in llama.cpp's order, where the two channels that rotate together are neighbors."""
    if not num_heads:
        return weight
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def _gguf_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER_TENSORS[rest.removesuffix('.weight')]}.weight"


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int) -> None:
    """The vocabulary and the merges, as a tokenizer of GPT-2's kind."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    entries = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens, kinds = [], []
    for index in range(vocab_size):
        kind = gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL
        tokens.append(special.get(index) or entries.get(index) or f"[unused {index}]")
        kinds.append(kind if tokens[-1] != f"[unused {index}]" else gguf.TokenType.UNUSED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(max(special))
    writer.add_add_bos_token(False)
