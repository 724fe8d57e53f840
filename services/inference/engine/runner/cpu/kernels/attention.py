"""Attention over the blocks of a paged KV cache.

In a block of one layer and one head, keys lie with the positions side by side ([head_dim, LANES], so that a vector is
one channel of all positions), values one position after the other ([LANES, head_dim rounded up to LANES]).
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
from services.inference.engine.runner.cpu.kernels.layout import (
    HEAD_DIM,
    NUM_BLOCKS,
    NUM_HEADS,
    NUM_KV_HEADS,
    PLAN,
    QKV,
    SCORES,
    SUMS,
)
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import FLOAT32S, INT64S, boolean, float32, int64

HEADS = 4  # that are computed at once


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64, float32, FLOAT32S, int64)
def rms_norm(x, index, count, gains, gain, epsilon, out, out_index):
    """Scale `count` numbers to a root mean square of 1, times a gain each, up to the next whole vector.

    What lies behind the numbers up to there is 0, and so are the gains.
    """
    vectors = (count + LANES - 1) // LANES * LANES
    mean = sum_of_squares(x, index, vectors) / np.float32(count)
    scale = np.float32(1.0) / np.sqrt(mean + epsilon)
    for place in range(vectors):
        out[out_index + place] = x[index + place] * scale * gains[gain + place]


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64, float32)
def head_norm(x, index, head_dim, gains, gain, epsilon):
    """RMSNorm of one head, in place: the sum goes channel by channel, as a head need not fill vectors."""
    total = np.float32(0.0)
    for channel in range(head_dim):
        total += x[index + channel] * x[index + channel]
    scale = np.float32(1.0) / np.sqrt(total / np.float32(head_dim) + epsilon)
    for channel in range(head_dim):
        x[index + channel] = x[index + channel] * scale * gains[gain + channel]


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64)
def rotate(x, index, head_dim, rotation, angle):
    """RoPE of one head, in place: channel i turns with channel i + head_dim / 2.

    `rotation` holds, from `angle` on, the head_dim / 2 cosines of the position, then its sines.
    """
    half = head_dim // 2
    for channel in range(half):
        first, second = x[index + channel], x[index + half + channel]
        cosine, sine = rotation[angle + channel], rotation[angle + half + channel]
        x[index + channel] = first * cosine - second * sine
        x[index + half + channel] = second * cosine + first * sine


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64)
def write_key(x, index, head_dim, keys, place):
    """Put a head's key into its block, from its position in the first channel on."""
    for channel in range(head_dim):
        keys[place + channel * LANES] = x[index + channel]


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64)
def write_value(x, index, head_dim, values, place):
    """Put a head's value into its block."""
    for channel in range(head_dim):
        values[place + channel] = x[index + channel]


@compiled(types.void, FLOAT32S, int64, int64, int64, INT64S, FLOAT32S, int64, PLAN, int64, FLOAT32S, int64)
def score_heads(qkv, index, head, heads, shape, keys, layer, plan, row, scratch, scores):
    """Scores of some queries of a token against all keys up to it, block by block as they lie in memory.

    `index` is where the queries begin, `head` the first one's number and `heads` how many there are. The scores of each
    go to `scratch`, shape[SCORES] apart from `scores` on.
    """
    head_dim, group = shape[HEAD_DIM], shape[NUM_HEADS] // shape[NUM_KV_HEADS]
    size, stride = head_dim * LANES, shape[NUM_KV_HEADS] * head_dim * LANES
    base, table, last = layer * shape[NUM_BLOCKS] * stride, plan.tables[row], plan.positions[row] // LANES
    room = shape[SCORES]
    begin = base + plan.blocks[table] * stride
    for number in range(last + 1):
        following = base + plan.blocks[table + min(number + 1, last)] * stride
        for first in range(0, heads, HEADS):
            # Where fewer are left, the last one is computed again and again.
            second, third, fourth = min(first + 1, heads - 1), min(first + 2, heads - 1), min(first + 3, heads - 1)
            place = scores + number * LANES
            dot_keys(
                qkv,
                index + first * head_dim,
                index + second * head_dim,
                index + third * head_dim,
                index + fourth * head_dim,
                keys,
                begin + (head + first) // group * size,
                begin + (head + second) // group * size,
                begin + (head + third) // group * size,
                begin + (head + fourth) // group * size,
                following - begin,
                head_dim,
                scratch,
                place + first * room,
                place + second * room,
                place + third * room,
                place + fourth * room,
            )
        begin = following


@compiled(types.void, int64, int64, INT64S, FLOAT32S, int64, PLAN, int64, FLOAT32S, int64, int64)
def mix_heads(head, heads, shape, values, layer, plan, row, scratch, shares, sums):
    """Add up the values of all positions up to a token, times their shares, block by block as they lie in memory.

    The sums of each head go to `scratch`, shape[SUMS] apart from `sums` on, CHAINS vectors for each part of channels.
    """
    head_dim, group = shape[HEAD_DIM], shape[NUM_HEADS] // shape[NUM_KV_HEADS]
    padded = (head_dim + LANES - 1) // LANES * LANES
    size, stride = padded * LANES, shape[NUM_KV_HEADS] * padded * LANES
    base, table = layer * shape[NUM_BLOCKS] * stride, plan.tables[row]
    count = plan.positions[row] + 1
    last = (count - 1) // LANES
    for place in range(sums, sums + heads * shape[SUMS]):
        scratch[place] = np.float32(0.0)
    begin = base + plan.blocks[table] * stride
    for number in range(last + 1):
        following = base + plan.blocks[table + min(number + 1, last)] * stride
        for index in range(heads):
            share = shares + index * shape[SCORES] + number * LANES
            value = begin + (head + index) // group * size
            total = sums + index * shape[SUMS]
            mix_block(scratch, share, count - number * LANES, values, value, following - begin, padded, total)
        begin = following


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64, int64, int64, int64)
def mix_block(scratch, share, count, values, value, ahead, padded, total):
    """Add one block's values of one head, as many vectors of channels at once as fit."""
    channel = 0
    while padded - channel >= 4 * LANES:
        mix_values_4(scratch, share, 0, count, values, value + channel, ahead, padded, total, 0)
        channel += 4 * LANES
        total += CHAINS * LANES
    if padded - channel >= 2 * LANES:
        mix_values_2(scratch, share, 0, count, values, value + channel, ahead, padded, total, 0)
        channel += 2 * LANES
        total += CHAINS * LANES
    if padded - channel >= LANES:
        mix_values_1(scratch, share, 0, count, values, value + channel, ahead, padded, total, 0)


@compiled(boolean, PLAN, int64, int64)
def begins_tile(plan, row, num_rows):
    """Whether a token and the TILE - 1 after it stand in one sequence, in one block, and are computed at once."""
    end = row + TILE - 1
    return plan.positions[row] % TILE == 0 and end < num_rows and plan.tables[end] == plan.tables[row]


@compiled(types.void, FLOAT32S, int64, int64, INT64S, FLOAT32S, int64, PLAN, int64, FLOAT32S, int64)
def score_tile(qkv, index, head, shape, keys, layer, plan, row, scratch, scores):
    """As `score_heads`, of one head of TILE tokens, whose scores lie shape[SCORES] apart."""
    head_dim, group = shape[HEAD_DIM], shape[NUM_HEADS] // shape[NUM_KV_HEADS]
    size, stride = head_dim * LANES, shape[NUM_KV_HEADS] * head_dim * LANES
    base = layer * shape[NUM_BLOCKS] * stride + head // group * size
    table, last = plan.tables[row], plan.positions[row] // LANES
    for number in range(0, last + 1, 4):
        dot_tile(
            qkv,
            index,
            shape[QKV],
            keys,
            base + plan.blocks[table + number] * stride,
            base + plan.blocks[table + min(number + 1, last)] * stride,
            base + plan.blocks[table + min(number + 2, last)] * stride,
            base + plan.blocks[table + min(number + 3, last)] * stride,
            head_dim,
            scratch,
            scores + number * LANES,
            shape[SCORES],
        )


@compiled(types.void, int64, INT64S, FLOAT32S, int64, PLAN, int64, FLOAT32S, int64, int64)
def mix_tile(head, shape, values, layer, plan, row, scratch, shares, sums):
    """As `mix_heads`, of one head of TILE tokens, whose sums lie shape[SUMS] apart."""
    head_dim, group = shape[HEAD_DIM], shape[NUM_HEADS] // shape[NUM_KV_HEADS]
    padded = (head_dim + LANES - 1) // LANES * LANES
    size, stride = padded * LANES, shape[NUM_KV_HEADS] * padded * LANES
    base, table = layer * shape[NUM_BLOCKS] * stride + head // group * size, plan.tables[row]
    rooms = shape[SCORES], shape[SUMS]
    for place in range(sums, sums + TILE * shape[SUMS]):
        scratch[place] = np.float32(0.0)
    for number in range(plan.positions[row] // LANES + 1):
        value, share = base + plan.blocks[table + number] * stride, shares + number * LANES
        count = plan.positions[row] + 1 - number * LANES
        total, channel = sums, 0
        while padded - channel >= 4 * LANES:
            mix_tile_4(scratch, share, rooms[0], count, values, value + channel, 0, padded, total, rooms[1])
            channel += 4 * LANES
            total += CHAINS * LANES
        if padded - channel >= 2 * LANES:
            mix_tile_2(scratch, share, rooms[0], count, values, value + channel, 0, padded, total, rooms[1])
            channel += 2 * LANES
            total += CHAINS * LANES
        if padded - channel >= LANES:
            mix_tile_1(scratch, share, rooms[0], count, values, value + channel, 0, padded, total, rooms[1])


@compiled(types.void, FLOAT32S, int64, int64, float32, FLOAT32S, int64)
def write_mixed(scratch, total, head_dim, scale, out, out_index):
    """Add up the chains of a head's sums, and write them, times `scale`."""
    padded = (head_dim + LANES - 1) // LANES * LANES
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
