"""Attention over the blocks of a paged KV cache.

In a block of one layer and one head, keys lie with the positions side by side ([head_dim, LANES], so that a vector is
one channel of all positions), values one position after the other ([LANES, head_dim rounded up to LANES]).
"""

import numpy as np

from services.inference.engine.cpu.kernels.intrinsics import (
    LANES,
    dot_keys,
    mix_values_1,
    mix_values_2,
    mix_values_4,
    softmax,
    sum_of_squares,
)
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import FLOAT32S, INT64S, float32, int64

DOTTED = 4  # blocks of keys whose scores are computed at once


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


@compiled(
    *(types.void, FLOAT32S, int64, int64, int64, FLOAT32S, int64, int64, FLOAT32S, int64, int64),
    *(INT64S, int64, FLOAT32S, int64, FLOAT32S, int64),
)
def attend(
    q,
    index,
    head_dim,
    count,
    keys,
    key_base,
    key_stride,
    values,
    value_base,
    value_stride,
    blocks,
    first,
    scratch,
    scores,
    out,
    out_index,
):
    """Mix the values of positions 0 to count - 1 for one query, which is scaled already.

    The query is at `q[index]`, and its result goes to `out[out_index]` and on. Keys of the layer and head in block b
    begin at `key_base + b * key_stride`, values likewise; the numbers of the sequence's blocks are in `blocks` from
    `first` on. `scratch` has room from `scores` on for `count` numbers rounded up to DOTTED blocks, then for a head.
    """
    last = (count - 1) // LANES
    for block in range(0, last + 1, DOTTED):
        dot_keys(
            q,
            index,
            keys,
            key_base + blocks[first + block] * key_stride,
            key_base + blocks[first + min(block + 1, last)] * key_stride,
            key_base + blocks[first + min(block + 2, last)] * key_stride,
            key_base + blocks[first + min(block + 3, last)] * key_stride,
            head_dim,
            scratch,
            scores + block * LANES,
        )
    scale = np.float32(1.0) / softmax(scratch, scores, count)
    mixed = scores + (last + DOTTED) // DOTTED * DOTTED * LANES
    mix(scratch, scores, count, values, value_base, blocks, first, value_stride, head_dim, mixed, scale)
    for channel in range(head_dim):
        out[out_index + channel] = scratch[mixed + channel]


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64, INT64S, int64, int64, int64, int64, float32)
def mix(scratch, scores, count, values, base, blocks, first, stride, head_dim, out, scale):
    """The sum of values, each times its share, written to `scratch` from `out` on, as many vectors at once as fit."""
    padded = (head_dim + LANES - 1) // LANES * LANES
    channel = 0
    while padded - channel >= 4 * LANES:
        mix_values_4(
            scratch,
            scores,
            count,
            values,
            base + channel,
            blocks,
            first,
            stride,
            padded,
            scratch,
            out + channel,
            scale,
        )
        channel += 4 * LANES
    if padded - channel >= 2 * LANES:
        mix_values_2(
            scratch,
            scores,
            count,
            values,
            base + channel,
            blocks,
            first,
            stride,
            padded,
            scratch,
            out + channel,
            scale,
        )
        channel += 2 * LANES
    if padded - channel >= LANES:
        mix_values_1(
            scratch,
            scores,
            count,
            values,
            base + channel,
            blocks,
            first,
            stride,
            padded,
            scratch,
            out + channel,
            scale,
        )
