"""A model from its settings."""

import re
from dataclasses import fields

import torch

from shared.lm import ModelConfig, RopeConfig, Transformer
from trainer.components.initialization import mimetic_attention_, xavier_, zero_blocks_, zero_head_
from trainer.errors import UsageError
from trainer.settings.fields import option
from trainer.settings.train import ModelSettings, OptimizationSettings


def model_config(settings: ModelSettings, vocab_size: int) -> ModelConfig:
    """The model's configuration, with what the settings leave open derived from the width.

    Raises:
        UsageError: sizes that do not match.
    """
    num_heads = settings.num_heads or max(1, settings.d_model // 64)
    if settings.d_model % num_heads:
        raise UsageError(f"--d-model ({settings.d_model}) must be a multiple of --num-heads ({num_heads})")
    try:
        return ModelConfig(
            vocab_size=vocab_size,
            context_length=settings.context_length,
            d_model=settings.d_model,
            num_layers=settings.num_layers,
            num_heads=num_heads,
            num_kv_heads=settings.num_kv_heads or num_heads,
            head_dim=settings.d_model // num_heads,
            d_ff=_d_ff(settings),
            qk_norm=settings.qk_norm,
            tie_embeddings=settings.tie_embeddings,
            rope=RopeConfig(theta=settings.rope_theta),
            initializer_range=settings.initializer_range,
            norm=settings.norm,
            position=settings.position,
            activation=settings.activation,
            logit_soft_cap=settings.logit_soft_cap,
            value_residual=settings.value_residual,
        )
    except ValueError as error:
        options = {item.name: option(item.name) for item in fields(settings) if "_" in item.name}
        raise UsageError(re.sub(r"\w+", lambda name: options.get(name[0], name[0]), str(error))) from error


def _d_ff(settings: ModelSettings) -> int:
    """The inner width: two matrices without a gate have 3/2 of the width of SwiGLU's three, and as many weights."""
    gated = settings.d_ff or -(-settings.d_model * 8 // (3 * 64)) * 64
    return gated if settings.activation == "swiglu" else max(1, gated * 3 // 2)


def new_model(settings: ModelSettings, vocab_size: int, seed: int) -> Transformer:
    """A model with initial weights that depend on the seed alone; sets torch's global random generators."""
    torch.manual_seed(seed)
    model = Transformer(model_config(settings, vocab_size))
    if settings.initialization == "xavier":
        xavier_(model)
    elif settings.initialization == "mimetic":
        mimetic_attention_(model)
    if settings.zero_outputs in {"blocks", "all"}:
        zero_blocks_(model)
    if settings.zero_outputs in {"head", "all"}:
        zero_head_(model)
    return model


def apply_recipe(model: Transformer, settings: OptimizationSettings, end_of_text_id: int | None) -> None:
    """Apply the training options that are not part of the model's configuration: dropout, document mask, checkpointing.

    Raises:
        UsageError: document_mask is set, and the tokenizer has no end-of-text id.
    """
    if settings.document_mask and end_of_text_id is None:
        raise UsageError("--document-mask needs an end-of-text id, and this tokenizer has none")
    model.set_dropout(settings.dropout)
    model.document_start = end_of_text_id if settings.document_mask else None
    model.model.checkpoint_activations = settings.checkpoint_activations
