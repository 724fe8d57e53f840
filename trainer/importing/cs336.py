"""The Transformer of Stanford's CS336, assignment 1: its state dict becomes a model folder.

The names and the architecture are those of the assignment's handout and of its public tests.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError, ModelFolderError
from shared.lm.folder import save_model_folder
from shared.lm.generation_config import GenerationDefaults
from shared.lm.rope_config import RopeConfig
from shared.lm.transformer import Transformer
from trainer.errors import TrainerError, UsageError
from trainer.importing.cs336_reference import reference_logits

_NAMES = {
    "token_embeddings.weight": "model.embed_tokens.weight",
    "ln_final.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn.q_proj.weight": "self_attn.q_proj.weight",
    "attn.k_proj.weight": "self_attn.k_proj.weight",
    "attn.v_proj.weight": "self_attn.v_proj.weight",
    "attn.output_proj.weight": "self_attn.o_proj.weight",
    "ln1.weight": "input_layernorm.weight",
    "ln2.weight": "post_attention_layernorm.weight",
    "ffn.w1.weight": "mlp.gate_proj.weight",
    "ffn.w2.weight": "mlp.down_proj.weight",
    "ffn.w3.weight": "mlp.up_proj.weight",
}
_LAYER = re.compile(r"layers\.(\d{1,4})\.(.+)")
# Tables that implementations keep in their state dicts, and that follow from the settings.
_TABLE = re.compile(r"\b(rope|rotary|mask|causal_mask|inv_freq|cos|sin|cos_sin)(_\w+)?\b", re.IGNORECASE)
_CHECKED_TOKENS = 32
_TOLERANCE = 1e-3  # of the largest logit: float32 against float64


@dataclass(frozen=True)
class CS336Options:
    """What a state dict does not say."""

    num_heads: int
    context_length: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5


@dataclass(frozen=True)
class ImportedModel:
    """What was imported: the model, and tensors that were left out."""

    model: Transformer
    config: ModelConfig
    ignored: list[str]
    largest_difference: float


def import_cs336(state: Mapping[str, Tensor], options: CS336Options) -> ImportedModel:
    """Build the model, and compare its logits with the assignment's own forward pass on a few tokens.

    Raises:
        TrainerError: Tensors are missing, unknown or of the wrong shape, or the logits differ.
        UsageError: An option contradicts the tensors.
    """
    ignored = [name for name in state if _TABLE.search(name) and _hf_name(name) is None]
    tensors = {name: tensor.float() for name, tensor in state.items() if name not in ignored}
    if unknown := [name for name in tensors if _hf_name(name) is None]:
        raise TrainerError(f"the state dict holds {_some(unknown)}, which the assignment's model does not have")
    config = _config(tensors, options)
    model = Transformer(config).eval()
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    renamed = {_hf_name(name): tensor for name, tensor in tensors.items()}
    for name, shape in expected.items():
        if name not in renamed:
            raise TrainerError(f"the state dict lacks {_cs336_name(name)}")
        if tuple(renamed[name].shape) != shape:
            raise TrainerError(f"{_cs336_name(name)} has the shape {list(renamed[name].shape)}, expected {list(shape)}")
    model.load_state_dict({name: _in_halves(name, renamed[name], config) for name in expected})
    return ImportedModel(model, config, ignored, _check(model, tensors, options))


def save_imported(folder: Path, imported: ImportedModel, tokenizer: Tokenizer, source: Path) -> None:
    """Write the model folder.

    Raises:
        TrainerError: The tokenizer has more tokens than the model, or the folder exists.
    """
    eos = tokenizer.end_of_text_id
    try:
        save_model_folder(
            folder,
            model=imported.model,
            tokenizer=tokenizer,
            generation=GenerationDefaults(eos_token_ids=() if eos is None else (eos,)),
            provenance={"imported": {"file": source.name, "format": "cs336"}},
        )
    except ModelFolderError as error:
        raise TrainerError(str(error)) from error


def _config(tensors: Mapping[str, Tensor], options: CS336Options) -> ModelConfig:
    needed = ("token_embeddings.weight", "layers.0.attn.k_proj.weight", "layers.0.ffn.w1.weight")
    if missing := [name for name in needed if name not in tensors or tensors[name].ndim != 2]:
        raise TrainerError(f"the state dict lacks {_some(missing)}: is it a model of CS336's assignment 1?")
    vocab_size, d_model = tensors[needed[0]].shape
    if d_model % options.num_heads:
        raise UsageError(f"--num-heads {options.num_heads}: does not divide the model's width, {d_model}")
    try:
        return ModelConfig(
            vocab_size=vocab_size,
            context_length=options.context_length,
            d_model=d_model,
            num_layers=1 + max(int(match[1]) for name in tensors if (match := _LAYER.fullmatch(name))),
            num_heads=options.num_heads,
            num_kv_heads=options.num_heads,
            head_dim=d_model // options.num_heads,
            d_ff=tensors[needed[2]].shape[0],
            norm_eps=options.norm_eps,
            tie_embeddings="lm_head.weight" not in tensors,
            rope=RopeConfig(options.rope_theta),
        )
    except ModelConfigError as error:
        raise UsageError(str(error)) from error


def _hf_name(name: str) -> str | None:
    if name in _NAMES:
        return _NAMES[name]
    match = _LAYER.fullmatch(name)
    part = _LAYER_NAMES.get(match[2]) if match else None
    return f"model.layers.{int(match[1])}.{part}" if match and part else None


def _cs336_name(name: str) -> str:
    parts = {theirs: ours for ours, theirs in (_NAMES | _LAYER_NAMES).items()}
    if name in parts:
        return parts[name]
    _, _, layer, part = name.split(".", 3)
    return f"layers.{layer}.{parts[part]}"


def _in_halves(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """The assignment rotates neighboring channels of queries and keys, Hugging Face channels half a head apart."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    pairs = weight.reshape(config.num_heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _check(model: Transformer, tensors: Mapping[str, Tensor], options: CS336Options) -> float:
    """Compare logits; returns the largest difference, relative to the largest logit."""
    length = min(_CHECKED_TOKENS, options.context_length)
    ids = torch.randint(model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(0))
    expected = reference_logits(
        {name: tensor.double().numpy() for name, tensor in tensors.items()},
        ids.numpy(),
        num_heads=options.num_heads,
        rope_theta=options.rope_theta,
        norm_eps=options.norm_eps,
    )
    with torch.no_grad():
        found = model(ids[None])[0].double().numpy()
    difference = float(abs(found - expected).max() / abs(expected).max())
    if not difference <= _TOLERANCE:
        raise TrainerError(
            f"the imported model's logits differ from the assignment's forward pass by {difference:.1e} of the largest "
            "one: nothing was written"
        )
    return difference


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(sorted(names)[:4]) + more
