"""How much memory a runner takes, and the arrays of a step. Memory is in bytes."""

import numpy as np

from services.inference.engine.runner.cpu.kernels.bfloat16 import GROUP
from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, ROW_BLOCK_FLOATS
from services.inference.engine.runner.cpu.kernels.intrinsics import (
    BFLOAT16,
    BFLOAT16_TILES,
    CHAINS,
    INT8,
    LANES,
    PANEL,
    TILE,
)
from services.inference.engine.runner.cpu.kernels.layout import Activations, Rows, Shape, Weights
from services.inference.engine.runner.cpu.kernels.linear import MATRIX_WORDS
from services.inference.engine.runner.cpu.panels import number_bytes
from services.inference.engine.runner.cpu.weights import aligned_bytes, round_up
from services.inference.engine.types import BLOCK_SIZE
from shared.lm import ModelConfig


def block_bytes(config: ModelConfig, kv_kind: int) -> int:
    """Memory of one block of the KV cache."""
    return config.num_layers * sum(_key_and_value_bytes(config, kv_kind))


def _key_and_value_bytes(config: ModelConfig, kv_kind: int) -> tuple[int, int]:
    """Memory of the keys of a block in one layer, and of its values."""
    of_a_channel = config.num_kv_heads * BLOCK_SIZE * number_bytes(kv_kind)
    return of_a_channel * config.head_dim, of_a_channel * round_up(config.head_dim, LANES)


def position_bytes(config: ModelConfig, num_threads: int, num_slots: int) -> int:
    """Memory that each position of the longest sequence takes beside the cache: its angles, scores and block table."""
    scores = max(config.num_heads, TILE) * num_threads
    return 4 * (config.head_dim + scores) + 8 * num_slots // BLOCK_SIZE


def shape_of(config: ModelConfig, kv_kind: int, context_length: int) -> Shape:
    """The sizes that kernels get, for sequences of at most `context_length` tokens."""
    key_bytes, value_bytes = _key_and_value_bytes(config, kv_kind)
    scores = round_up(context_length, 4 * BLOCK_SIZE) + LANES
    sums = round_up(config.head_dim, CHAINS * LANES) + 2 * CHAINS * LANES
    return Shape(
        d_model=config.d_model,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        has_head_norm=int(config.qk_norm),
        key_bytes=key_bytes,
        layer_bytes=key_bytes + value_bytes,
        scores=scores,
        sums=sums,
        scratch=round_up(max(config.num_heads, TILE) * (scores + sums + 1), LANES),
    )


def new_activations(
    config: ModelConfig, weights: Weights, num_slots: int, max_step_tokens: int, *, num_threads: int, scratch: int
) -> Activations:
    """Allocate the arrays of a step.

    Args:
        config: The model.
        weights: Packed, which decide how rows are converted.
        num_slots: Rows of logits.
        max_step_tokens: Rows of all else.
        num_threads: The most that run a step.
        scratch: Numbers of the scratch memory of each.
    """
    most_rows = max(num_slots, max_step_tokens)
    heads = config.num_heads * config.head_dim
    # Of rows of 8 bits, or of bfloat16, whole groups of which take 32 bits a number on some processors.
    converted = 0
    for _, _, depth, kind, _ in weights.matrices.reshape(-1, MATRIX_WORDS):
        if kind == INT8:
            converted = max(converted, depth // BLOCK * ROW_BLOCK_FLOATS * most_rows)
        elif kind in {BFLOAT16, BFLOAT16_TILES}:
            converted = max(converted, depth * round_up(most_rows, GROUP))

    sums = round_up(most_rows, GROUP) * PANEL  # for whole tiles of rows

    def rows(width: int, count: int = max_step_tokens) -> Rows:
        # Whole panels, and a cache line more, so that a row begins in another part of the cache than the last.
        stride = round_up(width, PANEL) + LANES
        return Rows(np.zeros(stride * count, np.float32), stride)

    return Activations(
        residual=rows(config.d_model),
        normed=rows(config.d_model, most_rows),
        qkv=rows(heads + 2 * config.num_kv_heads * config.head_dim),
        attended=rows(heads),
        hidden=rows(config.d_ff),
        logits=rows(config.vocab_size, num_slots),
        converted=aligned_bytes(4 * int(converted)).view(np.float32),
        sums=Rows(aligned_bytes(4 * sums * num_threads).view(np.float32), sums),
        scratch=np.zeros(scratch * num_threads, np.float32),
    )
