"""The Transformer of Stanford's CS336, assignment 1: its state dict.

The names and the architecture are those of the assignment's handout and of its public tests.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError
from shared.lm.rope_config import RopeConfig
from trainer.errors import TrainerError, UsageError
from trainer.importing.foreign import ForeignModel, in_halves
from trainer.importing.names import Names, some
from trainer.importing.reference import Reference, plain_frequencies

NAMES = Names(
    whole={"token_embeddings.weight": "embedding", "ln_final.weight": "norm", "lm_head.weight": "output"},
    layer="layers.{}.",
    parts={
        "attn.q_proj.weight": "query",
        "attn.k_proj.weight": "key",
        "attn.v_proj.weight": "value",
        "attn.output_proj.weight": "attention_output",
        "ln1.weight": "attention_norm",
        "ln2.weight": "feed_forward_norm",
        "ffn.w1.weight": "gate",
        "ffn.w2.weight": "down",
        "ffn.w3.weight": "up",
    },
)
# Tables that implementations keep in their state dicts, and that follow from the settings.
_TABLE = re.compile(r"\b(rope|rotary|mask|causal_mask|inv_freq|cos|sin|cos_sin)(_\w+)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class CS336Options:
    """What a state dict does not say."""

    num_heads: int
    context_length: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5


def read_cs336(state: Mapping[str, Tensor], options: CS336Options) -> ForeignModel:
    """Read a state dict.

    Raises:
        TrainerError: Tensors are missing or unknown.
        UsageError: An option contradicts the tensors.
    """
    ignored = [name for name in state if _TABLE.search(name) and NAMES.part_of(name) is None]
    tensors = {name: tensor.float() for name, tensor in state.items() if name not in ignored}
    if unknown := [name for name in tensors if NAMES.part_of(name) is None]:
        raise TrainerError(f"the state dict holds {some(unknown)}, which the assignment's model does not have")
    config = _config(tensors, options)
    notes = [f"left out {len(ignored)} tables that follow from the settings, such as {ignored[0]}"] if ignored else []
    return ForeignModel(
        format="CS336",
        config=config,
        weights={
            NAMES.hf_name(name): in_halves(tensor, config.num_heads)
            if name.endswith(("q_proj.weight", "k_proj.weight"))
            else tensor
            for name, tensor in tensors.items()
        },
        theirs=NAMES.own_name,
        logits=Reference(
            weights=NAMES.collect(tensors),
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm_eps=options.norm_eps,
            frequencies=plain_frequencies(options.rope_theta, config.head_dim),
            neighbors=True,
        ).logits,
        notes=notes,
    )


def _config(tensors: Mapping[str, Tensor], options: CS336Options) -> ModelConfig:
    needed = ("token_embeddings.weight", "layers.0.attn.k_proj.weight", "layers.0.ffn.w1.weight")
    if missing := [name for name in needed if name not in tensors or tensors[name].ndim != 2]:
        raise TrainerError(f"the state dict lacks {some(missing)}: is it a model of CS336's assignment 1?")
    vocab_size, d_model = tensors[needed[0]].shape
    if d_model % options.num_heads:
        raise UsageError(f"--num-heads {options.num_heads}: does not divide the model's width, {d_model}")
    try:
        return ModelConfig(
            vocab_size=vocab_size,
            context_length=options.context_length,
            d_model=d_model,
            num_layers=NAMES.num_layers(tensors),
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
