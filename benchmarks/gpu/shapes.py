"""The models that are measured."""

import dataclasses

from benchmarks.kv_cache import SHAPES
from shared.lm import ModelConfig

CONTEXT = 512

TINY = ModelConfig(
    vocab_size=600,
    context_length=CONTEXT,
    d_model=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=96,
    initializer_range=0.2,
)
"""Whose answers are compared; and for trying the benchmark."""

CHECKED = dataclasses.replace(TINY, vocab_size=5_000, d_model=256, num_layers=4, num_heads=8, head_dim=32, d_ff=688)
"""Whose answers are compared on a GPU."""


def measured(*, quick: bool) -> dict[str, ModelConfig]:
    """The models whose speed is measured, by name."""
    if quick:
        return {"tiny": TINY}
    return {"22.7M": dataclasses.replace(SHAPES["cs336"], tie_embeddings=False), "135M": SHAPES["smollm2-135m"]}
