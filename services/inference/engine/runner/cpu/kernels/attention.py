"""Attention over the blocks of a paged KV cache.

A block is contiguous: of each layer, the keys of all heads, then their values. Keys of a head lie with the positions
side by side ([head_dim, LANES], so that a vector is one channel of all positions), values one position after the other
([LANES, head_dim rounded up to LANES]).
"""

import numpy as np

from services.inference.engine.runner.cpu.kernels.intrinsics import (
    CHAINS,
    LANES,
    TILE,
    dot_keys,
    dot_tile,
    mix_tile_1,
    mix_tile_2,
    mix_tile_4,
    mix_values_1,
    mix_values_2,
    mix_values_4,
    sum_of_squares,
)
from services.inference.engine.runner.cpu.kernels.layout import Batch, Rows, Step
from shared.kernels.compiling import compiled, inlined
from shared.kernels.types import Float32Array, boolean, float32, int64

HEADS = 4  # that are computed at once


@inlined
def whole_vectors(count: int64) -> int64:
    """The numbers of as many vectors as hold `count`."""
    return (count + LANES - 1) // LANES * LANES


@compiled
def rms_norm(
    x: Float32Array,
    index: int64,
    count: int64,
    gains: Float32Array,
    gain: int64,
    epsilon: float32,
    out: Float32Array,
    out_index: int64,
) -> None:
    """Scale `count` numbers to a root mean square of 1, times a gain each, up to the next whole vector.

    What lies behind the numbers up to there is 0, and so are the gains.
    """
    vectors = whole_vectors(count)
    mean = sum_of_squares(x, index, vectors) / np.float32(count)
    scale = np.float32(1.0) / np.sqrt(mean + epsilon)
    for place in range(vectors):
        out[out_index + place] = x[index + place] * scale * gains[gain + place]


@compiled
def head_norm(
    x: Float32Array, index: int64, head_dim: int64, gains: Float32Array, gain: int64, epsilon: float32
) -> None:
    """RMSNorm of one head, in place: the sum goes channel by channel, as a head need not fill vectors."""
    total = np.float32(0.0)
    for channel in range(head_dim):
        total += x[index + channel] * x[index + channel]
    scale = np.float32(1.0) / np.sqrt(total / np.float32(head_dim) + epsilon)
    for channel in range(head_dim):
        x[index + channel] = x[index + channel] * scale * gains[gain + channel]


@compiled
def rotate(x: Float32Array, index: int64, head_dim: int64, rotation: Float32Array, angle: int64) -> None:
    """RoPE of one head, in place: channel i turns with channel i + head_dim / 2.

    `rotation` holds, from `angle` on, the head_dim / 2 cosines of the position, then its sines.
    """
    half = head_dim // 2
    for channel in range(half):
        first, second = x[index + channel], x[index + half + channel]
        cosine, sine = rotation[angle + channel], rotation[angle + half + channel]
        x[index + channel] = first * cosine - second * sine
        x[index + half + channel] = second * cosine + first * sine


@inlined
def layer_keys(step: Step, layer: int64, entry: int64) -> int64:
    """The byte at which a layer's keys begin, in the block at an entry of the batch's tables."""
    return (step.batch.blocks[entry] * step.shape.num_layers + layer) * step.shape.layer_bytes


@compiled
def score_heads(step: Step, layer: int64, row: int64, head: int64, heads: int64, scores: int64) -> None:
    """Scores of `heads` queries of a token, from `head` on, against all keys up to it, block by block in memory.

    Those of each go to the scratch, shape.scores apart from `scores` on.
    """
    shape, batch = step.shape, step.batch
    head_dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads
    size, table, last = head_dim * LANES * step.cache.number_bytes, batch.tables[row], batch.positions[row] // LANES
    query = row * step.work.qkv.stride + head * head_dim
    begin = layer_keys(step, layer, table)
    for number in range(last + 1):
        following = layer_keys(step, layer, table + min(number + 1, last))
        place = scores + number * LANES
        for a in range(0, heads, HEADS):
            # Where fewer are left, the last one is computed again and again.
            b, c, d = min(a + 1, heads - 1), min(a + 2, heads - 1), min(a + 3, heads - 1)
            dot_keys(
                step.work.qkv.values,
                (query + a * head_dim, query + b * head_dim, query + c * head_dim, query + d * head_dim),
                step.cache,
                (
                    begin + (head + a) // group * size,
                    begin + (head + b) // group * size,
                    begin + (head + c) // group * size,
                    begin + (head + d) // group * size,
                ),
                following - begin,
                head_dim,
                step.work.scratch,
                (
                    place + a * shape.scores,
                    place + b * shape.scores,
                    place + c * shape.scores,
                    place + d * shape.scores,
                ),
            )
        begin = following


@compiled
def mix_heads(step: Step, layer: int64, row: int64, head: int64, heads: int64, shares: int64, sums: int64) -> None:
    """Add up the values of all positions up to a token, times their shares, block by block as they lie in memory.

    The sums of each head go to the scratch, shape.sums apart from `sums` on, CHAINS vectors for each part of channels.
    """
    shape, batch, scratch = step.shape, step.batch, step.work.scratch
    padded, group = whole_vectors(shape.head_dim), shape.num_heads // shape.num_kv_heads
    part = LANES * step.cache.number_bytes  # the bytes of a vector
    table, count = batch.tables[row], batch.positions[row] + 1
    last = (count - 1) // LANES
    for place in range(sums, sums + heads * shape.sums):
        scratch[place] = np.float32(0.0)
    begin = layer_keys(step, layer, table) + shape.key_bytes
    for number in range(last + 1):
        following = layer_keys(step, layer, table + min(number + 1, last)) + shape.key_bytes
        for index in range(heads):
            share = shares + index * shape.scores + number * LANES
            value = begin + (head + index) // group * padded * part
            total, ahead = sums + index * shape.sums, following - begin
            vectors, left = padded // LANES, count - number * LANES
            while vectors >= 4:
                mix_values_4(scratch, (share, 0), (total, 0), left, step.cache, value, ahead, padded)
                vectors -= 4
                value += 4 * part
                total += CHAINS * LANES
            if vectors >= 2:
                mix_values_2(scratch, (share, 0), (total, 0), left, step.cache, value, ahead, padded)
                vectors -= 2
                value += 2 * part
                total += CHAINS * LANES
            if vectors >= 1:
                mix_values_1(scratch, (share, 0), (total, 0), left, step.cache, value, ahead, padded)
        begin = following


@compiled
def begins_tile(batch: Batch, row: int64, num_rows: int64) -> boolean:
    """Whether a token and the TILE - 1 after it stand in one sequence, in one block, and are computed at once."""
    end = row + TILE - 1
    return batch.positions[row] % TILE == 0 and end < num_rows and batch.tables[end] == batch.tables[row]


@compiled
def score_tile(step: Step, layer: int64, row: int64, head: int64, scores: int64) -> None:
    """As `score_heads`, of one head of TILE tokens, whose scores lie shape.scores apart."""
    shape, batch = step.shape, step.batch
    head_dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads
    begin = head // group * head_dim * LANES * step.cache.number_bytes
    table, last = batch.tables[row], batch.positions[row] // LANES
    query = row * step.work.qkv.stride + head * head_dim
    for number in range(0, last + 1, 4):
        blocks = (
            begin + layer_keys(step, layer, table + number),
            begin + layer_keys(step, layer, table + min(number + 1, last)),
            begin + layer_keys(step, layer, table + min(number + 2, last)),
            begin + layer_keys(step, layer, table + min(number + 3, last)),
        )
        target = Rows(step.work.scratch, shape.scores)
        dot_tile(step.work.qkv, query, step.cache, blocks, head_dim, target, scores + number * LANES)


@compiled
def mix_tile(step: Step, layer: int64, row: int64, head: int64, shares: int64, sums: int64) -> None:
    """As `mix_heads`, of one head of TILE tokens, whose sums lie shape.sums apart."""
    shape, batch, scratch, cache = step.shape, step.batch, step.work.scratch, step.cache
    padded, group = whole_vectors(shape.head_dim), shape.num_heads // shape.num_kv_heads
    part = LANES * cache.number_bytes  # the bytes of a vector
    begin, table = shape.key_bytes + head // group * padded * part, batch.tables[row]
    for place in range(sums, sums + TILE * shape.sums):
        scratch[place] = np.float32(0.0)
    for number in range(batch.positions[row] // LANES + 1):
        value, share = begin + layer_keys(step, layer, table + number), (shares + number * LANES, shape.scores)
        count = batch.positions[row] + 1 - number * LANES
        total, vectors = sums, padded // LANES
        while vectors >= 4:
            mix_tile_4(scratch, share, (total, shape.sums), count, cache, value, 0, padded)
            vectors -= 4
            value += 4 * part
            total += CHAINS * LANES
        if vectors >= 2:
            mix_tile_2(scratch, share, (total, shape.sums), count, cache, value, 0, padded)
            vectors -= 2
            value += 2 * part
            total += CHAINS * LANES
        if vectors >= 1:
            mix_tile_1(scratch, share, (total, shape.sums), count, cache, value, 0, padded)


@compiled
def write_mixed(
    scratch: Float32Array, total: int64, head_dim: int64, scale: float32, out: Float32Array, out_index: int64
) -> None:
    """Add up the chains of a head's sums, and write them, times `scale`."""
    padded = whole_vectors(head_dim)
    channel = 0
    while channel < head_dim:
        vectors = 4 if padded - channel >= 4 * LANES else 2 if padded - channel >= 2 * LANES else 1
        width = vectors * LANES
        for place in range(min(width, head_dim - channel)):
            mixed = scratch[total + place]
            for chain in range(1, CHAINS // vectors):
                mixed += scratch[total + chain * width + place]
            out[out_index + channel + place] = mixed * scale
        channel += width
        total += CHAINS * LANES
