"""Models in the formats of other projects, each written by its published layout, and their logits by torch in float64.

The layouts are those of llama2.c's export.py, of litgpt's model.py, of Meta's llama-models and of nanochat's gpt.py.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, KV_HEADS, HIDDEN = 448, 40, 32, 2, 4, 2, 48
HEAD = WIDTH // HEADS
EPS = 1e-5


def llama_weights(*, tied: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights under Meta's names, which llama2.c has too."""
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns) * 0.2

    weights = {"tok_embeddings.weight": matrix(VOCABULARY, WIDTH), "norm.weight": torch.rand(WIDTH) + 0.5}
    for layer in range(LAYERS):
        weights |= {
            f"layers.{layer}.{name}": weight
            for name, weight in {
                "attention.wq.weight": matrix(WIDTH, WIDTH),
                "attention.wk.weight": matrix(KV_HEADS * HEAD, WIDTH),
                "attention.wv.weight": matrix(KV_HEADS * HEAD, WIDTH),
                "attention.wo.weight": matrix(WIDTH, WIDTH),
                "feed_forward.w1.weight": matrix(HIDDEN, WIDTH),
                "feed_forward.w2.weight": matrix(WIDTH, HIDDEN),
                "feed_forward.w3.weight": matrix(HIDDEN, WIDTH),
                "attention_norm.weight": torch.rand(WIDTH) + 0.5,
                "ffn_norm.weight": torch.rand(WIDTH) + 0.5,
            }.items()
        }
    weights["output.weight"] = weights["tok_embeddings.weight"] if tied else matrix(VOCABULARY, WIDTH)
    return {name: weight.to(dtype) for name, weight in weights.items()}


def llama_logits(weights: dict[str, Tensor], ids: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """Meta's forward pass: rotations of neighboring channels as complex numbers."""
    w = {name: weight.double() for name, weight in weights.items()}
    if frequencies is None:
        frequencies = 10_000.0 ** -(torch.arange(0, HEAD, 2).double() / HEAD)
    angles = torch.outer(torch.arange(len(ids)).double(), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w[name]

    def rotate(x: Tensor) -> Tensor:  # [tokens, heads, channels]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turns[:, None]).flatten(2)

    x = w["tok_embeddings.weight"][ids]
    for layer in range(LAYERS):
        p = f"layers.{layer}."
        h = norm(x, p + "attention_norm.weight")
        q, k, v = ((h @ w[f"{p}attention.w{letter}.weight"].T).view(len(ids), -1, HEAD) for letter in ("q", "k", "v"))
        q, k = rotate(q), rotate(k).repeat_interleave(HEADS // KV_HEADS, 1)
        v = v.repeat_interleave(HEADS // KV_HEADS, 1)
        mixed = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=True)
        x = x + mixed.transpose(0, 1).reshape(len(ids), -1) @ w[p + "attention.wo.weight"].T
        h = norm(x, p + "ffn_norm.weight")
        gate = F.silu(h @ w[p + "feed_forward.w1.weight"].T) * (h @ w[p + "feed_forward.w3.weight"].T)
        x = x + gate @ w[p + "feed_forward.w2.weight"].T
    return norm(x, "norm.weight") @ w["output.weight"].T


_ATTENTION = [f"attention.w{letter}.weight" for letter in "qkvo"]
_FEED_FORWARD = [f"feed_forward.w{number}.weight" for number in (1, 2, 3)]


def write_llama2c(
    path: Path, weights: dict[str, Tensor], version: int, *, sizes: tuple[int, ...] | None = None, group: int = 16
) -> None:
    """As legacy_export, version1_export and version2_export write it."""
    sizes = sizes or (WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT)
    dim, _, layers, heads, _, _, length = sizes
    shared = torch.equal(weights["tok_embeddings.weight"], weights["output.weight"])

    def of(names: list[str]) -> list[str]:
        return [f"layers.{layer}.{name}" for name in names for layer in range(layers)]

    norms = of(["attention_norm.weight", "ffn_norm.weight"])
    matrices = ["tok_embeddings.weight", *of(_ATTENTION), *of(_FEED_FORWARD), *["output.weight"] * (not shared)]
    with path.open("wb") as file:

        def floats(tensor: Tensor) -> None:
            file.write(tensor.float().numpy().astype("<f4").tobytes())

        if version == 0:
            file.write(struct.pack("<7i", *sizes[:5], sizes[5] if shared else -sizes[5], length))
            order = ["tok_embeddings.weight", *of(["attention_norm.weight"]), *of(_ATTENTION)]
            for name in [*order, *of(["ffn_norm.weight"]), *of(_FEED_FORWARD), "norm.weight"]:
                floats(weights[name])
            head = dim // heads
            angles = torch.outer(torch.arange(length), 10_000.0 ** -(torch.arange(0, head, 2) / head))
            floats(angles.cos())
            floats(angles.sin())
            if not shared:
                floats(weights["output.weight"])
            return
        header = struct.pack("<Ii7iB", 0x616B3432, version, *sizes, shared)
        header += struct.pack("<i", group) if version == 2 else b""
        file.write(header.ljust(256, b"\0"))
        for name in [*norms, "norm.weight"]:
            floats(weights[name])
        for name in matrices:
            if version == 1:
                floats(weights[name])
                continue
            levels, scales = quantized(weights[name], group)
            file.write(levels.numpy().astype("<i1").tobytes())
            floats(scales)


def quantized(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Q8_0 as llama2.c has it: int8 in groups, each with its largest magnitude over 127 as scale."""
    groups = weight.float().reshape(-1, group)
    scales = groups.abs().amax(1) / 127
    return (groups / scales[:, None]).round().to(torch.int8), scales


def dequantized(weights: dict[str, Tensor], group: int = 16) -> dict[str, Tensor]:
    """What a file of version 2 stands for."""
    result = dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 2:
            levels, scales = quantized(weight, group)
            result[name] = (levels * scales[:, None]).reshape(weight.shape)
    return result


def write_meta(folder: Path, weights: dict[str, Tensor], *, parts: int = 1, rows: bool = True, **params: Any) -> None:
    """`consolidated.NN.pth` as Meta's model-parallel layers split them, and params.json.

    `rows` says how the embedding is split: by rows in Llama 3, by columns before.
    """
    folder.mkdir(exist_ok=True)
    for number in range(parts):
        part = {}
        for name, weight in weights.items():
            side = 1 if name.endswith(("wo.weight", "w2.weight")) or (name.startswith("tok_") and not rows) else 0
            part[name] = weight if weight.ndim == 1 else weight.chunk(parts, side)[number].clone()
        part["rope.freqs"] = torch.ones(HEAD // 2)
        torch.save(part, folder / f"consolidated.{number:02d}.pth")
    settings = {
        "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "multiple_of": 16, "norm_eps": EPS,
        "vocab_size": -1, **params,
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(settings))


def scaled(frequencies: Tensor) -> Tensor:
    """Llama 3.1's, as apply_scaling defines it with its thresholds on wavelengths."""
    wavelengths = 2 * math.pi / frequencies
    long, short = 8192 / 1, 8192 / 4
    smooth = (8192 / wavelengths - 1) / (4 - 1)
    between = (1 - smooth) * frequencies / 8 + smooth * frequencies
    return torch.where(wavelengths > long, frequencies / 8, torch.where(wavelengths < short, frequencies, between))


NANOCHAT = {
    "sequence_len": CONTEXT, "vocab_size": 440, "n_layer": LAYERS, "n_head": HEADS, "n_kv_head": KV_HEADS,
    "n_embd": WIDTH,
}  # fmt: skip


def nanochat_weights() -> dict[str, Tensor]:
    """Random weights of nanochat before 2026-01-11; 440 tokens and eight rows of padding."""
    torch.manual_seed(0)
    weights = {"transformer.wte.weight": torch.randn(VOCABULARY, WIDTH).bfloat16()}
    weights["lm_head.weight"] = torch.randn(VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        shapes = {
            "attn.c_q": (WIDTH, WIDTH), "attn.c_k": (KV_HEADS * HEAD, WIDTH), "attn.c_v": (KV_HEADS * HEAD, WIDTH),
            "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (4 * WIDTH, WIDTH), "mlp.c_proj": (WIDTH, 4 * WIDTH),
        }  # fmt: skip
        weights |= {f"transformer.h.{layer}.{n}.weight": torch.randn(shape) * 0.2 for n, shape in shapes.items()}
    return weights


def nanochat_logits(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """gpt.py's forward pass in float64, with float32's epsilon."""
    w = {name: weight.double() for name, weight in weights.items()}

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=float(np.finfo(np.float32).eps))

    angles = torch.outer(torch.arange(len(ids)).double(), 1 / 10_000 ** (torch.arange(0, HEAD, 2).double() / HEAD))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def rotate(x: Tensor) -> Tensor:
        a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return torch.cat([a * cos + b * sin, a * -sin + b * cos], -1)

    x = norm(w["transformer.wte.weight"][ids])
    for layer in range(LAYERS):
        p = f"transformer.h.{layer}."
        q, k, v = ((norm(x) @ w[f"{p}attn.c_{name}.weight"].T).view(len(ids), -1, HEAD) for name in "qkv")
        q, k = norm(rotate(q)), norm(rotate(k))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=True)
        x = x + mixed.transpose(0, 1).reshape(len(ids), -1) @ w[p + "attn.c_proj.weight"].T
        x = x + F.relu(norm(x) @ w[p + "mlp.c_fc.weight"].T).square() @ w[p + "mlp.c_proj.weight"].T
    return 15 * torch.tanh(norm(x) @ w["lm_head.weight"].T / 15)


LITGPT = {
    "name": "small", "hf_config": {"name": "small"}, "block_size": CONTEXT, "n_layer": LAYERS, "n_embd": WIDTH,
    "vocab_size": VOCABULARY, "padding_multiple": 64, "padded_vocab_size": VOCABULARY, "norm_class_name": "RMSNorm",
    "norm_eps": EPS, "n_head": HEADS, "head_size": HEAD, "n_query_groups": KV_HEADS, "rotary_percentage": 1.0,
    "parallel_residual": False, "bias": False, "mlp_class_name": "LLaMAMLP", "intermediate_size": HIDDEN,
    "rope_base": 10_000, "attn_bias": False, "norm_qk": False, "rope_adjustments": None, "sliding_window_size": None,
    "n_expert": 0, "lm_head_bias": False,
}  # fmt: skip


def litgpt_weights(*, biases: bool = False, norms: bool = False, older: bool = False) -> dict[str, Tensor]:
    """Random weights under litgpt's names; `older` has the fused projections of each group together."""
    torch.manual_seed(0)
    weights = {
        "lm_head.weight": torch.randn(VOCABULARY, WIDTH) * 0.2,
        "transformer.wte.weight": torch.randn(VOCABULARY, WIDTH) * 0.2,
        "transformer.ln_f.weight": torch.rand(WIDTH) + 0.5,
    }
    for layer in range(LAYERS):
        p = f"transformer.h.{layer}."
        rows = (HEADS + 2 * KV_HEADS) * HEAD
        fused = p + ("attn.attn" if older else "attn.qkv")
        weights |= {
            p + "norm_1.weight": torch.rand(WIDTH) + 0.5,
            p + "norm_2.weight": torch.rand(WIDTH) + 0.5,
            fused + ".weight": torch.randn(rows, WIDTH) * 0.2,
            p + "attn.proj.weight": torch.randn(WIDTH, WIDTH) * 0.2,
            p + "mlp.fc_1.weight": torch.randn(HIDDEN, WIDTH) * 0.2,
            p + "mlp.fc_2.weight": torch.randn(HIDDEN, WIDTH) * 0.2,
            p + "mlp.proj.weight": torch.randn(WIDTH, HIDDEN) * 0.2,
        }
        if biases:
            weights[fused + ".bias"] = torch.randn(rows)
        if norms:
            weights |= {f"{p}attn.norm_{letter}.weight": torch.rand(HEAD) + 0.5 for letter in "qk"}
    return weights


def write_litgpt(folder: Path, weights: dict[str, Tensor], **settings: Any) -> Path:
    """`lit_model.pth` and `model_config.yaml`."""
    folder.mkdir()
    torch.save(weights, folder / "lit_model.pth")
    (folder / "model_config.yaml").write_text(yaml.safe_dump(LITGPT | settings))
    return folder


def litgpt_logits(weights: dict[str, Tensor], ids: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """litgpt's forward pass in float64: one product for queries, keys and values, rotations of halves."""
    w = {name: weight.double() for name, weight in weights.items()}
    if frequencies is None:
        frequencies = 1.0 / 10_000 ** (torch.arange(0, HEAD, 2).double() / HEAD)
    angles = torch.outer(torch.arange(len(ids)).double(), frequencies).repeat(1, 2)[:, None]

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w[name] if name in w else x

    def rotate(x: Tensor) -> Tensor:
        a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()

    x = w["transformer.wte.weight"][ids]
    for layer in range(LAYERS):
        p = f"transformer.h.{layer}."
        h = norm(x, p + "norm_1.weight")
        if p + "attn.attn.weight" in w:  # the queries of a group, its key, its value
            fused = (h @ w[p + "attn.attn.weight"].T).view(len(ids), KV_HEADS, HEADS // KV_HEADS + 2, HEAD)
            q, k, v = fused[:, :, :-2].flatten(1, 2), fused[:, :, -2], fused[:, :, -1]
        else:
            fused = h @ w[p + "attn.qkv.weight"].T + w.get(p + "attn.qkv.bias", torch.zeros(1))
            sizes = (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD)
            q, k, v = (part.view(len(ids), -1, HEAD) for part in fused.split(sizes, -1))
        q, k = rotate(norm(q, p + "attn.norm_q.weight")), rotate(norm(k, p + "attn.norm_k.weight"))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), is_causal=True)
        x = x + mixed.transpose(0, 1).reshape(len(ids), -1) @ w[p + "attn.proj.weight"].T
        h = norm(x, p + "norm_2.weight")
        x = x + (F.silu(h @ w[p + "mlp.fc_1.weight"].T) * (h @ w[p + "mlp.fc_2.weight"].T)) @ w[p + "mlp.proj.weight"].T
    return norm(x, "transformer.ln_f.weight") @ w["lm_head.weight"].T
