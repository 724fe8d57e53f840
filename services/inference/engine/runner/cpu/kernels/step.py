"""A step of the model: all layers over the tokens of all segments, run by all threads at once.

Between two phases the threads wait for each other. In a phase they share rows, panels of weights or heads, but never
the terms of a sum, so that the division of work changes no bit of the result.
"""

import numpy as np

from services.inference.engine.runner.cpu.kernels.attention import (
    begins_tile,
    head_norm,
    mix_heads,
    mix_tile,
    rms_norm,
    rotate,
    score_heads,
    score_tile,
    write_key,
    write_mixed,
    write_value,
)
from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, TILE, barrier, softmax, take_ticket
from services.inference.engine.runner.cpu.kernels.layout import (
    ACTIVATIONS,
    ATTENDED,
    CACHE,
    D_MODEL,
    GATE_UP,
    HAS_HEAD_NORM,
    HEAD_DIM,
    HIDDEN,
    LOGITS,
    NUM_BLOCKS,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    PLAN,
    QKV,
    SCORES,
    SCRATCH,
    SUMS,
    SYNC,
    WEIGHTS,
    WIDE,
)
from services.inference.engine.runner.cpu.kernels.linear import gated_linear, linear
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import FLOAT32S, INT64S, float32, int64

MATRICES = 4
"""Matrices of a layer."""

TICKETS = 5
"""Counters of a layer: one for each matrix, and one for attention."""


@compiled(types.void, int64, int64, INT64S, float32, WEIGHTS, FLOAT32S, CACHE, PLAN, int64, ACTIVATIONS, SYNC)
def run_layers(thread, num_threads, shape, epsilon, weights, rotation, cache, plan, num_rows, work, sync):
    """Take `num_rows` tokens from their embeddings to the end of the last layer, and keep their keys and values.

    `rotation` holds, of each position, head_dim / 2 cosines and as many sines.
    """
    wide, d_model = shape[WIDE], shape[D_MODEL]
    vectors = (d_model + LANES - 1) // LANES * LANES
    head_gains = 2 * shape[HEAD_DIM] * shape[HAS_HEAD_NORM]
    embed(thread, num_threads, shape, weights.embedding, plan.tokens, num_rows, work.residual)
    for layer in range(shape[NUM_LAYERS]):
        matrix, ticket = MATRICES * layer, TICKETS * layer
        gain = layer * (2 * vectors + head_gains)
        norm_rows(thread, num_threads, shape, epsilon, weights.gains, gain, num_rows, work)
        barrier(sync.barrier, num_threads)
        linear(
            thread,
            num_threads,
            weights,
            matrix,
            work.normed,
            wide,
            num_rows,
            work.quantized,
            work.qkv,
            shape[QKV],
            False,
            sync,
            ticket,
        )
        barrier(sync.barrier, num_threads)
        place_rows(
            thread,
            num_threads,
            shape,
            epsilon,
            weights.gains,
            gain + 2 * vectors,
            rotation,
            layer,
            cache,
            plan,
            num_rows,
            work.qkv,
        )
        barrier(sync.barrier, num_threads)
        attend_rows(thread, num_threads, shape, layer, cache, plan, num_rows, work, sync.tickets, ticket + 4)
        barrier(sync.barrier, num_threads)
        linear(
            thread,
            num_threads,
            weights,
            matrix + 1,
            work.attended,
            shape[ATTENDED],
            num_rows,
            work.quantized,
            work.residual,
            wide,
            True,
            sync,
            ticket + 1,
        )
        barrier(sync.barrier, num_threads)
        norm_rows(thread, num_threads, shape, epsilon, weights.gains, gain + vectors, num_rows, work)
        barrier(sync.barrier, num_threads)
        gated_linear(
            thread,
            num_threads,
            weights,
            matrix + 2,
            work.normed,
            wide,
            num_rows,
            work.quantized,
            work.gate_up,
            shape[GATE_UP],
            work.hidden,
            shape[HIDDEN],
            sync,
            ticket + 2,
        )
        barrier(sync.barrier, num_threads)
        linear(
            thread,
            num_threads,
            weights,
            matrix + 3,
            work.hidden,
            shape[HIDDEN],
            num_rows,
            work.quantized,
            work.residual,
            wide,
            True,
            sync,
            ticket + 3,
        )
        barrier(sync.barrier, num_threads)


@compiled(types.void, int64, int64, INT64S, float32, WEIGHTS, PLAN, int64, int64, ACTIVATIONS, SYNC)
def run_head(thread, num_threads, shape, epsilon, weights, plan, begin, end, work, sync):
    """Compute the logits of the outputs from `begin` to `end` of the plan: row 0 of the logits is the first of them."""
    layers, wide = shape[NUM_LAYERS], shape[WIDE]
    vectors = (shape[D_MODEL] + LANES - 1) // LANES * LANES
    gain = layers * (2 * vectors + 2 * shape[HEAD_DIM] * shape[HAS_HEAD_NORM])
    for row in range(thread, end - begin, num_threads):
        source = plan.outputs[begin + row] * wide
        rms_norm(work.residual, source, shape[D_MODEL], weights.gains, gain, epsilon, work.normed, row * wide)
    barrier(sync.barrier, num_threads)
    linear(
        thread,
        num_threads,
        weights,
        MATRICES * layers,
        work.normed,
        wide,
        end - begin,
        work.quantized,
        work.logits,
        shape[LOGITS],
        False,
        sync,
        TICKETS * layers,
    )
    barrier(sync.barrier, num_threads)


@compiled(types.void, int64, int64, INT64S, FLOAT32S, INT64S, int64, FLOAT32S)
def embed(thread, num_threads, shape, embedding, tokens, num_rows, residual):
    """Start the residual stream of each token."""
    d_model, wide = shape[D_MODEL], shape[WIDE]
    for row in range(thread, num_rows, num_threads):
        source, target = tokens[row] * d_model, row * wide
        for channel in range(d_model):
            residual[target + channel] = embedding[source + channel]
        for channel in range(d_model, wide):
            residual[target + channel] = np.float32(0.0)


@compiled(types.void, int64, int64, INT64S, float32, FLOAT32S, int64, int64, ACTIVATIONS)
def norm_rows(thread, num_threads, shape, epsilon, gains, gain, num_rows, work):
    """Normalize the residual stream of each token. A thread takes the same rows as in `embed`."""
    wide = shape[WIDE]
    for row in range(thread, num_rows, num_threads):
        rms_norm(work.residual, row * wide, shape[D_MODEL], gains, gain, epsilon, work.normed, row * wide)


@compiled(types.void, int64, int64, INT64S, float32, FLOAT32S, int64, FLOAT32S, int64, CACHE, PLAN, int64, FLOAT32S)
def place_rows(thread, num_threads, shape, epsilon, gains, gain, rotation, layer, cache, plan, num_rows, qkv):
    """Norm (where there is one) and rotate queries and keys, scale the queries, and put keys and values into blocks."""
    heads, kv_heads, head_dim = shape[NUM_HEADS], shape[NUM_KV_HEADS], shape[HEAD_DIM]
    padded = (head_dim + LANES - 1) // LANES * LANES
    scale = np.float32(1.0) / np.sqrt(np.float32(head_dim))
    for row in range(thread, num_rows, num_threads):
        position, index = plan.positions[row], row * shape[QKV]
        block = layer * shape[NUM_BLOCKS] + plan.blocks[plan.tables[row] + position // LANES]
        in_block = position % LANES
        for head in range(heads + kv_heads):
            place = index + head * head_dim
            is_key = head >= heads
            if shape[HAS_HEAD_NORM]:
                head_norm(qkv, place, head_dim, gains, gain + (head_dim if is_key else 0), epsilon)
            rotate(qkv, place, head_dim, rotation, position * head_dim)
            if is_key:
                number = block * kv_heads + head - heads
                write_key(qkv, place, head_dim, cache.keys, number * head_dim * LANES + in_block)
            else:
                for channel in range(head_dim):
                    qkv[place + channel] *= scale
        for head in range(kv_heads):
            place = index + (heads + kv_heads + head) * head_dim
            number = block * kv_heads + head
            write_value(qkv, place, head_dim, cache.values, (number * LANES + in_block) * padded)


@compiled(types.void, int64, int64, INT64S, int64, CACHE, PLAN, int64, ACTIVATIONS, INT64S, int64)
def attend_rows(thread, num_threads, shape, layer, cache, plan, num_rows, work, tickets, ticket):
    """Attention of all tokens; a ticket is for some heads of one of them, or of the tile that it begins."""
    heads = shape[NUM_HEADS]
    width = max(1, min(heads, num_rows * heads // (2 * num_threads)))
    parts = (heads + width - 1) // width
    item = take_ticket(tickets, ticket)
    while item < num_rows * parts:
        row, head = item // parts, item % parts * width
        first = row - plan.positions[row] % TILE
        if first < 0 or not begins_tile(plan, first, num_rows):
            attend_row(thread, shape, layer, cache, plan, row, head, min(width, heads - head), work)
        elif first == row:
            for number in range(head, min(head + width, heads)):
                attend_tile(thread, shape, layer, cache, plan, row, number, work)
        item = take_ticket(tickets, ticket)


@compiled(types.void, int64, INT64S, int64, CACHE, PLAN, int64, int64, int64, ACTIVATIONS)
def attend_row(thread, shape, layer, cache, plan, row, head, count, work):
    """Attention of `count` heads of one token."""
    heads, head_dim = shape[NUM_HEADS], shape[HEAD_DIM]
    scores = thread * shape[SCRATCH]
    sums = scores + heads * shape[SCORES]
    scales = sums + heads * shape[SUMS]
    index = row * shape[QKV] + head * head_dim
    score_heads(work.qkv, index, head, count, shape, cache.keys, layer, plan, row, work.scratch, scores)
    for part in range(count):
        total = softmax(work.scratch, scores + part * shape[SCORES], plan.positions[row] + 1)
        work.scratch[scales + part] = np.float32(1.0) / total
    mix_heads(head, count, shape, cache.values, layer, plan, row, work.scratch, scores, sums)
    for part in range(count):
        target = row * shape[ATTENDED] + (head + part) * head_dim
        total, scale = sums + part * shape[SUMS], work.scratch[scales + part]
        write_mixed(work.scratch, total, head_dim, scale, work.attended, target)


@compiled(types.void, int64, INT64S, int64, CACHE, PLAN, int64, int64, ACTIVATIONS)
def attend_tile(thread, shape, layer, cache, plan, row, head, work):
    """Attention of one head of TILE tokens: each of its numbers comes about as in `attend_row`."""
    head_dim = shape[HEAD_DIM]
    scores = thread * shape[SCRATCH]
    sums = scores + TILE * shape[SCORES]
    scales = sums + TILE * shape[SUMS]
    index = row * shape[QKV] + head * head_dim
    score_tile(work.qkv, index, head, shape, cache.keys, layer, plan, row, work.scratch, scores)
    for part in range(TILE):
        total = softmax(work.scratch, scores + part * shape[SCORES], plan.positions[row] + part + 1)
        work.scratch[scales + part] = np.float32(1.0) / total
    mix_tile(head, shape, cache.values, layer, plan, row, work.scratch, scores, sums)
    for part in range(TILE):
        target = (row + part) * shape[ATTENDED] + head * head_dim
        total, scale = sums + part * shape[SUMS], work.scratch[scales + part]
        write_mixed(work.scratch, total, head_dim, scale, work.attended, target)
