"""Drawing and scoring: what a thread does for its rows."""

import math

import numpy as np

from services.inference.engine.sampler.kernels.arrays import NUM_BUCKETS, NUM_UNIFORMS, RESULTS, ROWS, SCRATCH
from services.inference.engine.sampler.kernels.scores import (
    add_bias,
    copy_scores,
    drop_ties,
    fill_buckets,
    fill_weights,
    first_of,
    greatest,
    keep_likely,
    pick,
)
from services.inference.engine.sampler.kernels.selection import find_cut
from shared.kernels.compiling import compiled
from shared.kernels.types import INT32S, INT64S, Array, boolean, float32, float64, int64, void

NO_TOKEN = -1
LOWEST_LOGPROB = -9999.0
"""Copies of those in `shared.lm`, since the object file is named by a hash of the sources of this package alone."""

_LOGITS = Array(float32, readonly=True)
_LARGEST = float(np.finfo(np.float32).max)
_INFINITY = float("inf")
_NATS = 24.0  # beyond this distance to the likeliest one, scores are in one class


@compiled(boolean, float32)
def _is_finite(score):
    return score - score == 0.0


@compiled(float32, SCRATCH, _LOGITS, int64, INT32S, int64)
def _read_scores(scratch, logits, start, invalid, size):
    """Take a row's logits without the ids that must not be drawn, and return the greatest one."""
    peak = copy_scores(logits, start, scratch.scores, size)
    for index in range(len(invalid)):
        scratch.scores[invalid[index]] = -_INFINITY
    return greatest(scratch.scores) if len(invalid) > 0 else peak


@compiled(void, ROWS, SCRATCH, int64, int64)
def _penalize(rows, scratch, row, size):
    scores = scratch.scores
    repetition, presence, frequency = rows.repetition[row], rows.presence[row], rows.frequency[row]
    for token in range(size):
        seen = rows.seen[row * size + token]
        if seen == 0 or not _is_finite(scores[token]):
            continue
        value = np.float64(scores[token])
        value = value / repetition if value > 0.0 else value * repetition
        times = seen >> 1
        if times > 0:
            value += -presence - frequency * times
        scores[token] = np.float32(min(max(value, -_LARGEST), _LARGEST))


@compiled(boolean, ROWS, SCRATCH, int64, int64)
def _change_scores(rows, scratch, row, size):
    """Apply bias, min_tokens and penalties, and return whether the row has any."""
    changed = False
    if rows.biased[row]:
        add_bias(scratch.scores, rows.bias, row * size, size)
        changed = True
    if rows.steps[row] < rows.min_tokens[row]:
        first = row * (len(rows.stops) // len(rows.steps))
        for index in range(first, first + rows.num_stops[row]):
            scratch.scores[rows.stops[index]] = -_INFINITY
        changed = True
    if rows.penalized[row]:
        _penalize(rows, scratch, row, size)
        changed = True
    return changed


@compiled(float64, ROWS, SCRATCH, int64, float32, float64)
def _filter(rows, scratch, row, peak, total):
    """Zero the weights that top_k, top_p and min_p remove, and return the sum of the others."""
    inverse_temperature, log_min_p = rows.inverse_temperature[row], rows.log_min_p[row]
    scores, weights, sums, cut = scratch.scores, scratch.weights, scratch.sums, scratch.cut
    top_k, top_p = rows.top_k[row], rows.top_p[row]
    limits_count, limits_mass = top_k < len(scores), top_p < 1.0
    if limits_count or limits_mass:
        fill_buckets(scores, scratch.buckets, peak, inverse_temperature * NUM_BUCKETS / _NATS, NUM_BUCKETS)
    cut[0] = -_INFINITY
    if limits_count:
        find_cut(scratch, float(top_k), True)
        if cut[1] < cut[2]:
            drop_ties(scores, weights, np.float32(cut[0]), np.int64(cut[1]))
        if limits_mass:
            total = keep_likely(scores, weights, sums, np.float32(cut[0]), peak, inverse_temperature, -_INFINITY)
    if limits_mass:
        find_cut(scratch, top_p * total, False)
        if cut[1] < cut[2]:
            drop_ties(scores, weights, np.float32(cut[0]), np.int64(cut[1]))
    if limits_count or limits_mass or log_min_p > -_INFINITY:
        total = keep_likely(scores, weights, sums, np.float32(cut[0]), peak, inverse_temperature, log_min_p)
    return total


@compiled(int64, ROWS, SCRATCH, int64, float32)
def _draw(rows, scratch, row, peak):
    if rows.greedy[row]:
        return first_of(scratch.scores, peak)
    total = fill_weights(scratch.scores, scratch.weights, scratch.sums, peak, rows.inverse_temperature[row])
    total = _filter(rows, scratch, row, peak, total)
    uniform = rows.uniforms[row * NUM_UNIFORMS + rows.steps[row] % NUM_UNIFORMS]
    return pick(scratch.weights, scratch.sums, uniform * total)


@compiled(void, SCRATCH, RESULTS, int64, int64, float32)
def _find_top(scratch, results, place, count, peak):
    """Report the `count` likeliest ids, and what the log-probabilities are computed from."""
    scores, cut = scratch.scores, scratch.cut
    results.peaks[place] = peak
    results.log_sums[place] = math.log(fill_weights(scores, scratch.weights, scratch.sums, peak, 1.0))
    found = 0
    if count > 0:
        fill_buckets(scores, scratch.buckets, peak, NUM_BUCKETS / _NATS, NUM_BUCKETS)
        find_cut(scratch, float(count), True)
        ties, first = np.int64(cut[1]), place * (len(results.top_ids) // len(results.tokens))
        for token in range(len(scores)):
            score = scores[token]
            if score < cut[0]:
                continue
            if score == cut[0]:
                ties -= 1
                if ties < 0:
                    continue
            results.top_ids[first + found] = token
            results.top_scores[first + found] = score
            found += 1
    results.num_top[place] = found


@compiled(float64, RESULTS, int64, float32)
def _logprob(results, place, score):
    # The difference first: beside a great logit the logarithm is nothing.
    return max((np.float64(score) - results.peaks[place]) - results.log_sums[place], LOWEST_LOGPROB)


@compiled(int64, _LOGITS, int64, int64, INT64S, INT32S, ROWS, SCRATCH, RESULTS, int64, int64, int64)
def draw_rows(logits, num_rows, stride, places, invalid, rows, scratch, results, size, first, step):
    """Draw for every `step`-th row of the logits, from `first` on; `places` are their places.

    Rows of `size` logits lie `stride` apart. The draws count as output from then on. Returns how many of the rows have
    no random number left for their next draw.
    """
    num_spent = 0
    for index in range(first, num_rows, step):
        row, start = places[index], index * stride
        results.tokens[index] = NO_TOKEN
        peak = _read_scores(scratch, logits, start, invalid, size)
        if not _is_finite(peak):
            continue
        if rows.num_logprobs[row] >= 0:
            _find_top(scratch, results, index, rows.num_logprobs[row], peak)
        if _change_scores(rows, scratch, row, size):
            peak = greatest(scratch.scores)
            if not _is_finite(peak):
                continue
        token = _draw(rows, scratch, row, peak)
        results.tokens[index] = token
        results.chosen[index] = _logprob(results, index, logits[start + token])
        rows.steps[row] += 1
        rows.seen[row * size + token] += 2
        num_spent += rows.steps[row] % NUM_UNIFORMS == 0
    return num_spent


@compiled(void, _LOGITS, int64, int64, INT64S, int64, INT32S, SCRATCH, RESULTS, int64, int64, int64)
def score_rows(logits, num_rows, stride, targets, num_logprobs, invalid, scratch, results, size, first, step):
    """Score every `step`-th row of the logits, from `first` on; they lie `stride` apart."""
    for index in range(first, num_rows, step):
        results.num_top[index] = 0
        results.chosen[index] = LOWEST_LOGPROB
        peak = _read_scores(scratch, logits, index * stride, invalid, size)
        if _is_finite(peak):
            _find_top(scratch, results, index, num_logprobs, peak)
            results.chosen[index] = _logprob(results, index, scratch.scores[targets[index]])
