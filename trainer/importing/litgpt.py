"""litgpt's checkpoints: `lit_model.pth` and `model_config.yaml` (https://github.com/Lightning-AI/litgpt)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError
from shared.lm.rope_config import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling
from shared.system.errors import short_repr
from shared.system.regular_file import read_regular
from trainer.errors import TrainerError
from trainer.importing.foreign import ForeignModel, drop_tied_output, is_tied
from trainer.importing.names import Names, some
from trainer.importing.reference import Array, Reference, llama3_frequencies, plain_frequencies
from trainer.importing.state_file import read_state

MODEL, CONFIG = "lit_model.pth", "model_config.yaml"
NAMES = Names(
    whole={"transformer.wte.weight": "embedding", "transformer.ln_f.weight": "norm", "lm_head.weight": "output"},
    layer="transformer.h.{}.",
    parts={
        "norm_1.weight": "attention_norm",
        "norm_2.weight": "feed_forward_norm",
        **{f"attn.{name}.{kind}": f"{part}{'_bias' * (kind == 'bias')}" for kind in ("weight", "bias")
           for name, part in (("q", "query"), ("k", "key"), ("v", "value"))},
        "attn.proj.weight": "attention_output",
        "attn.norm_q.weight": "query_norm",
        "attn.norm_k.weight": "key_norm",
        "mlp.fc_1.weight": "gate",
        "mlp.fc_2.weight": "up",
        "mlp.proj.weight": "down",
    },
)  # fmt: skip
_MOST_BYTES = 1 << 18

# Keys that must have the value that makes a model a Llama or Qwen; litgpt's default, and what is accepted.
_FIXED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "norm_class_name": ("LayerNorm", ("RMSNorm",)),
    "mlp_class_name": ("GptNeoxMLP", ("LLaMAMLP",)),
    "parallel_residual": (True, (False,)),
    "rotary_percentage": (0.25, (1, 1.0)),
    "bias": (True, (False,)),
    "norm_qk_type": ("default", ("default",)),
    **dict.fromkeys(("post_attention_norm", "post_mlp_norm", "shared_attention_norm"), (False, (False,))),
    **dict.fromkeys(("scale_embeddings", "lm_head_bias", "rope_interleave"), (False, (False,))),
    **dict.fromkeys(("norm_1", "norm_2"), (True, (True,))),
    **dict.fromkeys(("attention_logit_softcapping", "final_logit_softcapping", "latent_attention"), (None, (None,))),
    **dict.fromkeys(("sliding_window_size", "rope_local_base_freq"), (None, (None,))),
    "n_expert": (0, (0,)),
}  # fmt: skip
_READ = {
    "name", "block_size", "n_layer", "n_embd", "padded_vocab_size", "n_head", "head_size", "n_query_groups", "norm_eps",
    "norm_qk", "attn_bias", "attention_scores_scalar", "rope_base", "rope_condense_ratio", "rope_adjustments",
    "intermediate_size",
}  # fmt: skip
# Without effect on a dense Llama: of the Hub, of the vocabulary's padding, of experts, of windows.
_UNUSED = {
    "hf_config", "vocab_size", "padding_multiple", "gelu_approximate", "moe_intermediate_size", "n_expert_per_token",
    "n_shared_expert", "n_expert_groups", "n_topk_groups", "n_topk_scores_per_group", "first_k_dense_replace",
    "routed_scaling_factor", "norm_topk_prob", "sliding_window_indices", "rope_indices", "sliding_window_layer_placing",
    "sliding_window_layer_stride",
}  # fmt: skip


def read_litgpt(folder: Path) -> ForeignModel:
    """Read a checkpoint folder.

    Raises:
        TrainerError: A file is missing or damaged, or the model is not a Llama, Qwen2 or Qwen3; names the key.
    """
    settings = _read_settings(folder / CONFIG)
    config = _config(folder / CONFIG, settings)
    tensors = _split(folder / MODEL, read_state(folder / MODEL, strip_wrappers=True), config)
    if unknown := [name for name in tensors if NAMES.part_of(name) is None]:
        raise TrainerError(f"{folder / MODEL}: holds {some(unknown)}, which a Llama of litgpt does not have")
    embedding, output = tensors.get("transformer.wte.weight"), tensors.get("lm_head.weight")
    if embedding is not None and is_tied(embedding, output):
        config = replace(config, tie_embeddings=True)
    return ForeignModel(
        format="litgpt",
        config=config,
        weights=drop_tied_output({NAMES.hf_name(name): tensor for name, tensor in tensors.items()}, config),
        theirs=NAMES.own_name,
        logits=Reference(
            weights=NAMES.collect(tensors),
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm_eps=config.norm_eps,
            frequencies=_frequencies(config),
            neighbors=False,
        ).logits,
    )


def _read_settings(file: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(read_regular(file, _MOST_BYTES))
    except OSError as error:
        raise TrainerError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TrainerError(f"{file}: not YAML ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise TrainerError(f"{file}: holds no settings of litgpt")
    for name, (default, accepted) in _FIXED.items():
        if (value := settings.get(name, default)) not in accepted:
            raise TrainerError(
                f'{file}: "{name}" is {short_repr(value)}; only models with {" or ".join(map(repr, accepted))} are '
                "Llamas or Qwens, which can be run exactly"
            )
    for name, value in settings.items():
        if name not in _FIXED.keys() | _READ | _UNUSED and value not in (None, False):
            raise TrainerError(f'{file}: "{name}" is {short_repr(value)}, a setting that is not known here')
    if "Gemma" in str(settings.get("name")):
        raise TrainerError(f"{file}: a Gemma, whose norms add 1 to their weights, is not a Llama")
    return settings


def _config(file: Path, settings: Mapping[str, Any]) -> ModelConfig:
    try:
        num_heads, width = settings["n_head"], settings["n_embd"]
        head_size = settings.get("head_size") or width // num_heads
        _check_scores(settings, head_size)
        config = ModelConfig(
            vocab_size=settings["padded_vocab_size"],
            context_length=settings["block_size"],
            d_model=width,
            num_layers=settings["n_layer"],
            num_heads=num_heads,
            num_kv_heads=settings.get("n_query_groups") or num_heads,
            head_dim=head_size,
            d_ff=settings["intermediate_size"],
            norm_eps=settings.get("norm_eps", 1e-5),
            qk_norm=settings.get("norm_qk", False),
            attention_bias="qkv" if settings.get("attn_bias") else "",
            tie_embeddings=False,
            rope=RopeConfig(float(settings.get("rope_base", 10_000)), _scaling(settings)),
        )
    except KeyError as error:
        raise TrainerError(f"{file}: lacks {error}") from error
    except (ModelConfigError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise TrainerError(f"{file}: {error}") from error
    return config


def _check_scores(settings: Mapping[str, Any], head_size: int) -> None:
    if settings.get("attention_scores_scalar") not in (None, head_size):
        raise ModelConfigError('"attention_scores_scalar" must be the size of a head')


def _scaling(settings: Mapping[str, Any]) -> RopeScaling | None:
    condensed, adjusted = settings.get("rope_condense_ratio", 1), settings.get("rope_adjustments")
    if adjusted is None:
        return None if condensed == 1 else LinearScaling(float(condensed))
    if condensed != 1:
        raise ModelConfigError('"rope_condense_ratio" and "rope_adjustments" together are not supported')
    if adjusted.keys() == {"factor"}:
        return LinearScaling(float(adjusted["factor"]))
    if adjusted.keys() == {"factor", "low_freq_factor", "high_freq_factor", "original_max_seq_len"}:
        factor, low, high = (float(adjusted[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        return Llama3Scaling(factor, low, high, adjusted["original_max_seq_len"])
    raise ModelConfigError(
        f'"rope_adjustments" is {short_repr(adjusted)}: those of Llama 3 and a factor alone are supported (litgpt '
        "computes YaRN with other bounds than Hugging Face)"
    )


def _frequencies(config: ModelConfig) -> Array:
    """As litgpt's build_rope_cache has them."""
    frequencies, scaling = plain_frequencies(config.rope.theta, config.head_dim), config.rope.scaling
    if isinstance(scaling, Llama3Scaling):
        return llama3_frequencies(
            frequencies,
            scaling.factor,
            scaling.low_freq_factor,
            scaling.high_freq_factor,
            scaling.original_context_length,
        )
    return frequencies / scaling.factor if isinstance(scaling, LinearScaling) else frequencies


def _split(file: Path, state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Take the fused projections apart: rows of all queries, keys, values; in older files those of each group."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem, _, kind = name.rpartition(".")
        if not stem.endswith((".attn.qkv", ".attn.attn")):
            tensors[name] = tensor
            continue
        if tensor.ndim < 1 or len(tensor) != queries + 2 * keys:
            raise TrainerError(
                f"{file}: {name} has the shape {list(tensor.shape)}, expected {queries + 2 * keys} rows of queries, "
                "keys and values"
            )
        whole = tensor if stem.endswith(".qkv") else _by_kind(tensor, config)
        for letter, part in zip("qkv", torch.split(whole, [queries, keys, keys]), strict=True):
            tensors[f"{stem.rpartition('.')[0]}.{letter}.{kind}"] = part
    return tensors


def _by_kind(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of older files, where each group has its queries, its key and its value."""
    per_group = tensor.reshape(config.num_kv_heads, -1, config.head_dim, *tensor.shape[1:])
    parts = (per_group[:, :-2], per_group[:, -2:-1], per_group[:, -1:])
    return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
