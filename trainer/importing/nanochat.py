"""nanochat's checkpoints, `model_NNNNNN.pt` and `meta_NNNNNN.json`, up to January 2026.

Its model (https://github.com/karpathy/nanochat, nanochat/gpt.py) became another one on 2026-01-11, with learned factors
of the residual stream, value embeddings, windows and more; those are refused by name. The earlier one differs from a
Llama: norms without weights, one of them on the embedding; the square of ReLU without a gate; a norm on queries and
keys after RoPE; and capped logits. Here, that is a research model.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError, ModelFolderError
from shared.lm.json_file import read_json
from shared.lm.rope_config import RopeConfig
from shared.system.errors import short_repr
from trainer.errors import TrainerError
from trainer.importing.foreign import ForeignModel
from trainer.importing.names import Names, some
from trainer.importing.reference import Array, attended, heads, plain_frequencies, product, rms_norm, rotated
from trainer.importing.state_file import read_state

NAMES = Names(
    whole={"transformer.wte.weight": "embedding", "lm_head.weight": "output"},
    layer="transformer.h.{}.",
    parts={
        "attn.c_q.weight": "query",
        "attn.c_k.weight": "key",
        "attn.c_v.weight": "value",
        "attn.c_proj.weight": "attention_output",
        "mlp.c_fc.weight": "up",
        "mlp.c_proj.weight": "down",
    },
)
_NEWER = {
    "resid_lambdas": "factors of the residual stream",
    "x0_lambdas": "the embedding added to each layer",
    "value_embeds": "value embeddings",
    "ve_gate": "gates of value embeddings",
    "smear": "embeddings mixed with the token before",
    "backout_lambda": "a middle layer taken from the last",
}
_SIZES = ("sequence_len", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd")
_THETA, _CAP = 10_000.0, 15.0
_EPS = float(np.finfo(np.float32).eps)  # of torch's rms_norm, where none is given


def read_nanochat(file: Path) -> ForeignModel:
    """Read a checkpoint's model.

    Raises:
        TrainerError: A file is missing or damaged, or the model is one of the newer ones; names what it has.
    """
    tensors = read_state(file, strip_wrappers=True)  # which nanochat itself strips
    if newer := [words for name, words in _NEWER.items() if any(name in found for found in tensors)]:
        raise TrainerError(
            f"{file}: this nanochat model has {', '.join(newer)}, which no architecture here has; those of nanochat "
            "before 2026-01-11 can be imported. To use this one, run nanochat's own chat_web or chat_cli"
        )
    if unknown := [name for name in tensors if NAMES.part_of(name) is None]:
        raise TrainerError(f"{file}: holds {some(unknown)}, which nanochat's model does not have")
    config = _config(file, tensors)
    return ForeignModel(
        format="nanochat",
        config=config,
        weights=_weights(tensors, config),
        theirs=NAMES.own_name,
        logits=lambda ids: _logits(tensors, config, ids),
        notes=[
            "a research model: `generate` and `evaluate` open it, the services and transformers do not",
            "nanochat computes in bfloat16, where its norms add 0.0078 to the mean square; here they add 1.2e-7, as in "
            "its float32",
        ],
    )


def _config(file: Path, tensors: Mapping[str, Tensor]) -> ModelConfig:
    embedding = tensors.get("transformer.wte.weight")
    up = tensors.get("transformer.h.0.mlp.c_fc.weight")
    if embedding is None or embedding.ndim != 2 or up is None or up.ndim != 2:
        raise TrainerError(f"{file}: lacks transformer.wte.weight or transformer.h.0.mlp.c_fc.weight")
    meta = file.with_name(re.sub(r"^model_(\d+)\.pt$", r"meta_\1.json", file.name))
    try:
        settings = read_json(meta).get("model_config") if meta != file else None
    except ModelFolderError as error:
        raise TrainerError(f"{error}; it says how many heads the model has") from error
    if not isinstance(settings, dict) or not all(type(settings.get(name)) is int for name in _SIZES):
        raise TrainerError(
            f'{meta}: needs a "model_config" with {", ".join(_SIZES)} as whole numbers; nanochat writes '
            "meta_NNNNNN.json beside model_NNNNNN.pt"
        )
    if settings.get("window_pattern", "L").strip("Ll"):
        pattern = short_repr(settings["window_pattern"])
        raise TrainerError(f'{meta}: "window_pattern" is {pattern}: sliding-window attention is not supported')
    sizes: dict[str, int] = {name: settings[name] for name in _SIZES}
    if sizes["n_head"] < 1 or sizes["n_embd"] % sizes["n_head"]:
        raise TrainerError(f"{meta}: {sizes['n_head']} heads do not divide the width, {sizes['n_embd']}")
    try:
        return ModelConfig(
            vocab_size=len(embedding),  # rows for padding included
            context_length=sizes["sequence_len"],
            d_model=sizes["n_embd"],
            num_layers=sizes["n_layer"],
            num_heads=sizes["n_head"],
            num_kv_heads=sizes["n_kv_head"],
            head_dim=sizes["n_embd"] // sizes["n_head"],
            d_ff=len(up),
            norm_eps=_EPS,
            qk_norm=True,
            tie_embeddings=False,
            rope=RopeConfig(_THETA),
            activation="relu2",
            logit_soft_cap=_CAP,
        )
    except ModelConfigError as error:
        raise TrainerError(f"{meta}: {error}") from error


def _weights(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Norms get weights of 1, the embedding's norm moves into its rows, and rotations turn the other way."""
    weights = {NAMES.hf_name(name): tensor for name, tensor in tensors.items()}
    embedding = weights["model.embed_tokens.weight"].float()
    weights["model.embed_tokens.weight"] = embedding * (embedding.square().mean(-1, keepdim=True) + _EPS).rsqrt()
    weights["model.norm.weight"] = torch.ones(config.d_model)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = torch.ones(config.d_model)
        for letter in "qk":
            weights[f"{prefix}.self_attn.{letter}_norm.weight"] = torch.ones(config.head_dim)
            projection = weights.get(f"{prefix}.self_attn.{letter}_proj.weight")
            if projection is not None and projection.numel() % config.head_dim == 0:
                weights[f"{prefix}.self_attn.{letter}_proj.weight"] = _mirrored(projection, config.head_dim)
    return weights


def _mirrored(projection: Tensor, head_dim: int) -> Tensor:
    """Negate the second half of each head: a rotation by minus the angle becomes one by the angle."""
    sign = torch.ones(head_dim, dtype=projection.dtype)
    sign[head_dim // 2 :] = -1
    return projection * sign.repeat(len(projection) // head_dim)[:, None]


def _logits(tensors: Mapping[str, Tensor], config: ModelConfig, ids: NDArray[np.int64]) -> Array:
    """The forward pass as gpt.py defines it, in its float32's epsilon."""
    x = rms_norm(tensors["transformer.wte.weight"][ids].double().numpy(), _EPS)
    frequencies = -plain_frequencies(_THETA, config.head_dim)  # it rotates the other way
    groups = config.num_heads // config.num_kv_heads
    for layer in range(config.num_layers):

        def of(name: str, layer: int = layer) -> Tensor:
            return tensors[f"transformer.h.{layer}.{name}.weight"]

        normed = rms_norm(x, _EPS)
        queries, keys = (
            rms_norm(
                rotated(heads(product(normed, of(f"attn.c_{letter}")), number), frequencies, neighbors=False), _EPS
            )
            for letter, number in (("q", config.num_heads), ("k", config.num_kv_heads))
        )
        values = heads(product(normed, of("attn.c_v")), config.num_kv_heads)
        mixed = attended(queries, keys.repeat(groups, 0), values.repeat(groups, 0))
        x = x + product(mixed.swapaxes(0, 1).reshape(len(x), -1), of("attn.c_proj"))
        positive = np.maximum(product(rms_norm(x, _EPS), of("mlp.c_fc")), 0)
        x = x + product(positive * positive, of("mlp.c_proj"))
    return _CAP * np.tanh(product(rms_norm(x, _EPS), tensors["lm_head.weight"]) / _CAP)
