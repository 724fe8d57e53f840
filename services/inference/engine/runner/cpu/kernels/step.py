"""A step of the model: all layers over the tokens of all segments, run by several threads.

In a phase (see `phases`) they share rows, panels of weights or heads, but never the terms of a sum, so that the
division of work changes no bit of the result.
"""

import numpy as np

from services.inference.engine.runner.cpu.kernels.attention import (
    begins_tile,
    head_norm,
    layer_keys,
    mix_heads,
    mix_tile,
    rms_norm,
    rotate,
    score_heads,
    score_tile,
    whole_vectors,
    write_mixed,
)
from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, TILE, softmax, write_numbers
from services.inference.engine.runner.cpu.kernels.layout import Shape, Step, Threads
from services.inference.engine.runner.cpu.kernels.linear import ADD, GATE, WRITE, linear
from services.inference.engine.runner.cpu.kernels.phases import PHASE_WORDS, ROWS, finish_phase, take_item
from shared.kernels.compiling import compiled
from shared.kernels.types import int64

MATRICES = 4
"""Matrices of a layer."""
_PHASES_OF_LAYER = 12  # at most: four matrices, the conversion of the rows for each, two norms, keys, attention


def phase_words(num_layers: int) -> int:
    """The words of the phases of a step."""
    return PHASE_WORDS * (1 + _PHASES_OF_LAYER * num_layers)


@compiled
def run_layers(threads: Threads, step: Step) -> None:
    """Take tokens from their embeddings to the end of the last layer, and keep their keys and values."""
    phase = embed(threads, 0, step)
    for layer in range(step.shape.num_layers):
        phase = run_attention(threads, phase, step, layer)
        phase = run_feed_forward(threads, phase, step, layer)


@compiled
def run_attention(threads: Threads, phase: int64, step: Step, layer: int64) -> int64:
    """The first half of a layer; returns the next phase."""
    weights, work, rows, matrix = step.weights, step.work, step.num_rows, MATRICES * layer
    phase = norm_rows(threads, phase, step, gain_of(step.shape, layer))
    phase = linear(threads, phase, weights, matrix, work.normed, rows, work, work.qkv, WRITE)
    phase = place_rows(threads, phase, step, layer)
    phase = attend_rows(threads, phase, step, layer)
    return linear(threads, phase, weights, matrix + 1, work.attended, rows, work, work.residual, ADD)


@compiled
def run_feed_forward(threads: Threads, phase: int64, step: Step, layer: int64) -> int64:
    """The second half of a layer; returns the next phase."""
    weights, work, rows, matrix = step.weights, step.work, step.num_rows, MATRICES * layer + 2
    phase = norm_rows(threads, phase, step, gain_of(step.shape, layer) + whole_vectors(step.shape.d_model))
    phase = linear(threads, phase, weights, matrix, work.normed, rows, work, work.hidden, GATE)
    return linear(threads, phase, weights, matrix + 1, work.hidden, rows, work, work.residual, ADD)


@compiled
def run_head(threads: Threads, step: Step) -> None:
    """Compute the logits of the first outputs of the batch, a row for each."""
    weights, work, matrix = step.weights, step.work, MATRICES * step.shape.num_layers
    phase = norm_outputs(threads, 0, step)
    linear(threads, phase, weights, matrix, work.normed, step.num_rows, work, work.logits, WRITE)


@compiled
def norm_outputs(threads: Threads, phase: int64, step: Step) -> int64:
    """Normalize the residual stream of each output; returns the next phase."""
    work, gain = step.work, gain_of(step.shape, step.shape.num_layers)
    done, row = 0, take_item(threads, phase)
    while row < step.num_rows:
        source, target = step.batch.outputs[row] * work.residual.stride, row * work.normed.stride
        normalize(step, source, gain, target)
        done += 1
        row = take_item(threads, phase)
    return finish_phase(threads, phase, done, step.num_rows)


@compiled
def gain_of(shape: Shape, layer: int64) -> int64:
    """Where the gains of a layer begin; behind those of the last, the gains of the last norm."""
    return layer * 2 * (whole_vectors(shape.d_model) + shape.head_dim * shape.has_head_norm)


@compiled
def embed(threads: Threads, phase: int64, step: Step) -> int64:
    """Start the residual stream of each token; returns the next phase."""
    d_model, residual, embedding = step.shape.d_model, step.work.residual, step.weights.embedding
    done, row = 0, take_item(threads, phase)
    while row < step.num_rows:
        source, target = step.batch.tokens[row] * d_model, row * residual.stride
        for channel in range(d_model):
            residual.values[target + channel] = embedding[source + channel]
        for channel in range(d_model, residual.stride):
            residual.values[target + channel] = np.float32(0.0)
        done += 1
        row = take_item(threads, phase)
    return finish_phase(threads, phase, done, step.num_rows)


@compiled
def norm_rows(threads: Threads, phase: int64, step: Step, gain: int64) -> int64:
    """Normalize the residual stream of each token; returns the next phase."""
    items = (step.num_rows + ROWS - 1) // ROWS
    done, item = 0, take_item(threads, phase)
    while item < items:
        for row in range(item * ROWS, min(item * ROWS + ROWS, step.num_rows)):
            normalize(step, row * step.work.residual.stride, gain, row * step.work.normed.stride)
        done += 1
        item = take_item(threads, phase)
    return finish_phase(threads, phase, done, items)


@compiled
def normalize(step: Step, source: int64, gain: int64, target: int64) -> None:
    """Normalize a row of the residual stream."""
    residual, gains, normed = step.work.residual.values, step.weights.gains, step.work.normed.values
    rms_norm(residual, source, step.shape.d_model, gains, gain, step.epsilon, normed, target)


@compiled
def place_rows(threads: Threads, phase: int64, step: Step, layer: int64) -> int64:
    """Prepare the attention of each token; returns the next phase."""
    done, row = 0, take_item(threads, phase)
    while row < step.num_rows:
        place_row(step, layer, row)
        done += 1
        row = take_item(threads, phase)
    return finish_phase(threads, phase, done, step.num_rows)


@compiled
def place_row(step: Step, layer: int64, row: int64) -> None:
    """Norm (where there is one) and rotate queries and keys, scale the queries, and put keys and values into blocks."""
    shape, batch, cache, qkv = step.shape, step.batch, step.cache, step.work.qkv.values
    heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    padded = whole_vectors(head_dim)
    gain = gain_of(shape, layer) + 2 * whole_vectors(shape.d_model)
    scale = np.float32(1.0) / np.sqrt(np.float32(head_dim))
    position, index = batch.positions[row], row * step.work.qkv.stride
    keys = layer_keys(step, layer, batch.tables[row] + position // LANES)
    in_block = position % LANES
    for head in range(heads + kv_heads):
        place = index + head * head_dim
        is_key = head >= heads
        if shape.has_head_norm:
            of_kind = gain + (head_dim if is_key else 0)
            head_norm(qkv, place, head_dim, step.weights.gains, of_kind, step.epsilon)
        rotate(qkv, place, head_dim, step.rotation, position * head_dim)
        if is_key:
            target = (head - heads) * head_dim * LANES + in_block
            write_numbers(qkv, place, head_dim, cache, keys + target * cache.number_bytes, LANES)
        else:
            for channel in range(head_dim):
                qkv[place + channel] *= scale
    for head in range(kv_heads):
        place = index + (heads + kv_heads + head) * head_dim
        target = (head * LANES + in_block) * padded
        write_numbers(qkv, place, head_dim, cache, keys + shape.key_bytes + target * cache.number_bytes, 1)


@compiled
def attend_rows(threads: Threads, phase: int64, step: Step, layer: int64) -> int64:
    """Attention of all tokens; an item is some heads of one of them, or of the tile that it begins.

    Returns:
        The next phase.
    """
    heads, num_rows = step.shape.num_heads, step.num_rows
    width = max(1, min(heads, num_rows * heads // (2 * threads.count)))
    parts = (heads + width - 1) // width
    done, item = 0, take_item(threads, phase)
    while item < num_rows * parts:
        row, head = item // parts, item % parts * width
        first = row - step.batch.positions[row] % TILE
        if first < 0 or not begins_tile(step.batch, first, num_rows):
            attend_row(threads.thread, step, layer, row, head, min(width, heads - head))
        elif first == row:
            for number in range(head, min(head + width, heads)):
                attend_tile(threads.thread, step, layer, row, number)
        done += 1
        item = take_item(threads, phase)
    return finish_phase(threads, phase, done, num_rows * parts)


@compiled
def attend_row(thread: int64, step: Step, layer: int64, row: int64, head: int64, count: int64) -> None:
    """Attention of `count` heads of one token."""
    shape, work, scratch = step.shape, step.work, step.work.scratch
    scores = thread * shape.scratch
    sums = scores + shape.num_heads * shape.scores
    scales = sums + shape.num_heads * shape.sums
    score_heads(step, layer, row, head, count, scores)
    for part in range(count):
        total = softmax(scratch, scores + part * shape.scores, step.batch.positions[row] + 1)
        scratch[scales + part] = np.float32(1.0) / total
    mix_heads(step, layer, row, head, count, scores, sums)
    for part in range(count):
        target = row * work.attended.stride + (head + part) * shape.head_dim
        sum_ = sums + part * shape.sums
        write_mixed(scratch, sum_, shape.head_dim, scratch[scales + part], work.attended.values, target)


@compiled
def attend_tile(thread: int64, step: Step, layer: int64, row: int64, head: int64) -> None:
    """Attention of one head of TILE tokens: each of its numbers comes about as in `attend_row`."""
    shape, work, scratch = step.shape, step.work, step.work.scratch
    scores = thread * shape.scratch
    sums = scores + TILE * shape.scores
    scales = sums + TILE * shape.sums
    score_tile(step, layer, row, head, scores)
    for part in range(TILE):
        total = softmax(scratch, scores + part * shape.scores, step.batch.positions[row] + part + 1)
        scratch[scales + part] = np.float32(1.0) / total
    mix_tile(step, layer, row, head, scores, sums)
    for part in range(TILE):
        target = (row + part) * work.attended.stride + head * shape.head_dim
        sum_ = sums + part * shape.sums
        write_mixed(scratch, sum_, shape.head_dim, scratch[scales + part], work.attended.values, target)
