"""The architecture of a model as GGUF's metadata."""

import math

from gguf import GGUFWriter, RopeScalingType

from shared.lm.config import ModelConfig
from shared.lm.rope_config import LinearScaling, YarnScaling
from trainer.errors import TrainerError

_YARN_FAST, _YARN_SLOW = 32.0, 1.0


def architecture_of(config: ModelConfig) -> str:
    """llama.cpp's name of the architecture: Hugging Face's, for those that we have."""
    return config.family


def add_architecture(writer: GGUFWriter, config: ModelConfig) -> None:
    """Add sizes and RoPE.

    Raises:
        TrainerError: llama.cpp cannot run it exactly.
    """
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    scaling = config.rope.scaling
    if isinstance(scaling, LinearScaling):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
    elif isinstance(scaling, YarnScaling):
        _add_yarn(writer, scaling)


def _add_yarn(writer: GGUFWriter, scaling: YarnScaling) -> None:
    if not scaling.truncate or (scaling.beta_fast, scaling.beta_slow) != (_YARN_FAST, _YARN_SLOW):
        raise TrainerError(
            "config.json: llama.cpp has YaRN's scaling only with truncate, beta_fast 32 and beta_slow 1; "
            "the model cannot be exported as GGUF"
        )
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling.factor)
    writer.add_rope_scaling_orig_ctx_len(scaling.original_context_length)
    # llama.cpp multiplies by the paper's factor itself.
    writer.add_rope_scaling_attn_factors(scaling.magnitude / (0.1 * math.log(scaling.factor) + 1.0))
