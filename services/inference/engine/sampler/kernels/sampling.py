"""Sampling and scoring: what a thread does for its rows."""

import math

import numpy as np

from services.inference.engine.sampler.kernels.arrays import (
    NUM_BUCKETS,
    NUM_UNIFORMS,
    Logits,
    Results,
    Scratch,
    SlotState,
)
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
from shared.kernels.types import Int64Array, boolean, float32, float64, int64

NO_TOKEN = -1
LOWEST_LOGPROB = -9999.0
"""Copies of those in `shared.lm`, since the object file is named by a hash of the sources of this package alone."""

_LARGEST = float(np.finfo(np.float32).max)
_INFINITY = float("inf")
_NATS = 24.0  # beyond this distance to the most likely one, scores are in one class


@compiled
def _is_finite(score: float32) -> boolean:
    return score - score == 0.0


@compiled
def _read_scores(scratch: Scratch, logits: Logits, row: int64) -> float32:
    """Take a row's logits without the ids that must not be sampled, and return the greatest one."""
    invalid, scores = logits.invalid, scratch.scores
    peak = copy_scores(logits.values, row * logits.stride, scores, logits.size)
    for index in range(len(invalid)):
        scores[invalid[index]] = -_INFINITY
    return greatest(scores) if len(invalid) > 0 else peak


@compiled
def _penalize(state: SlotState, scratch: Scratch, slot: int64, size: int64) -> None:
    scores = scratch.scores
    repetition, presence, frequency = state.repetition[slot], state.presence[slot], state.frequency[slot]
    for token in range(size):
        seen = state.seen[slot * size + token]
        if seen == 0 or not _is_finite(scores[token]):
            continue
        value = np.float64(scores[token])
        value = value / repetition if value > 0.0 else value * repetition
        times = seen >> 1
        if times > 0:
            value += -presence - frequency * times
        scores[token] = np.float32(min(max(value, -_LARGEST), _LARGEST))


@compiled
def _change_scores(state: SlotState, scratch: Scratch, slot: int64, size: int64) -> boolean:
    """Apply bias, min_tokens and penalties, and return whether the slot has any."""
    changed = False
    if state.biased[slot]:
        add_bias(scratch.scores, state.bias, slot * size, size)
        changed = True
    if state.steps[slot] < state.min_tokens[slot]:
        first = slot * (len(state.stops) // len(state.steps))
        for index in range(first, first + state.num_stops[slot]):
            scratch.scores[state.stops[index]] = -_INFINITY
        changed = True
    if state.penalized[slot]:
        _penalize(state, scratch, slot, size)
        changed = True
    return changed


@compiled
def _filter(state: SlotState, scratch: Scratch, slot: int64, peak: float32, total: float64) -> float64:
    """Zero the weights that top_k, top_p and min_p remove, and return the sum of the others."""
    inverse_temperature, log_min_p = state.inverse_temperature[slot], state.log_min_p[slot]
    scores, weights, sums, cut = scratch.scores, scratch.weights, scratch.sums, scratch.cut
    top_k, top_p = state.top_k[slot], state.top_p[slot]
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


@compiled
def _sample(state: SlotState, scratch: Scratch, slot: int64, peak: float32) -> int64:
    if state.greedy[slot]:
        return first_of(scratch.scores, peak)
    total = fill_weights(scratch.scores, scratch.weights, scratch.sums, peak, state.inverse_temperature[slot])
    total = _filter(state, scratch, slot, peak, total)
    uniform = state.uniforms[slot * NUM_UNIFORMS + state.steps[slot] % NUM_UNIFORMS]
    return pick(scratch.weights, scratch.sums, uniform * total)


@compiled
def _find_top(scratch: Scratch, results: Results, place: int64, count: int64, peak: float32) -> None:
    """Report the `count` most likely ids, and what the log-probabilities are computed from."""
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


@compiled
def _logprob(results: Results, place: int64, score: float32) -> float64:
    # The difference first: next to a large logit the logarithm would be rounded away.
    return max((np.float64(score) - results.peaks[place]) - results.log_sums[place], LOWEST_LOGPROB)


@compiled
def sample_rows(
    logits: Logits, slots: Int64Array, state: SlotState, scratch: Scratch, results: Results, first: int64, step: int64
) -> int64:
    """Sample for every `step`-th row of the logits, from `first` on; `slots` are their slots.

    The tokens count as output from then on. Returns how many of the slots have no random number left for their next
    token.
    """
    num_spent, size = 0, logits.size
    for row in range(first, logits.num_rows, step):
        slot = slots[row]
        results.tokens[row] = NO_TOKEN
        peak = _read_scores(scratch, logits, row)
        if not _is_finite(peak):
            continue
        if state.num_logprobs[slot] >= 0:
            _find_top(scratch, results, row, state.num_logprobs[slot], peak)
        if _change_scores(state, scratch, slot, size):
            peak = greatest(scratch.scores)
            if not _is_finite(peak):
                continue
        token = _sample(state, scratch, slot, peak)
        results.tokens[row] = token
        results.chosen[row] = _logprob(results, row, logits.values[row * logits.stride + token])
        state.steps[slot] += 1
        state.seen[slot * size + token] += 2
        num_spent += state.steps[slot] % NUM_UNIFORMS == 0
    return num_spent


@compiled
def score_rows(
    logits: Logits,
    targets: Int64Array,
    num_logprobs: int64,
    scratch: Scratch,
    results: Results,
    first: int64,
    step: int64,
) -> None:
    """Score every `step`-th row of the logits, from `first` on."""
    for row in range(first, logits.num_rows, step):
        results.num_top[row] = 0
        results.chosen[row] = LOWEST_LOGPROB
        peak = _read_scores(scratch, logits, row)
        if _is_finite(peak):
            _find_top(scratch, results, row, num_logprobs, peak)
            results.chosen[row] = _logprob(results, row, scratch.scores[targets[row]])
