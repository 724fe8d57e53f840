"""The arrays that kernels work on, and their sizes."""

from typing import Any, NamedTuple

import numpy as np

from shared.kernels import types

BLOCK = 128
"""Scores are gone through in blocks of this many."""

NUM_BUCKETS = 512
"""Classes of scores that a cut is looked for among."""

NUM_UNIFORMS = 64
"""Random numbers of a slot that are held ready."""

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
Float32Array = np.ndarray[Any, np.dtype[np.float32]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]
Uint8Array = np.ndarray[Any, np.dtype[np.uint8]]


class SlotState(NamedTuple):
    """The state of each slot; [num_slots] unless stated otherwise.

    Attributes:
        inverse_temperature: 1 / temperature.
        greedy: 1 where the likeliest id is taken.
        top_k: The vocabulary's size where all are kept.
        top_p: 1 where all are kept; the slack is taken off already.
        log_min_p: Natural logarithm; -inf where all are kept.
        repetition: Factor.
        presence: Summand.
        frequency: Summand for each time.
        penalized: 1 where any of the three penalties does something.
        biased: 1 where `bias` holds anything.
        num_logprobs: -1 where no log-probabilities are wanted.
        steps: Ids sampled.
        min_tokens: Steps before which no id of `stops` is sampled.
        num_stops: Entries of `stops`.
        uniforms: [num_slots * NUM_UNIFORMS] the random number of step s is at s modulo NUM_UNIFORMS.
        stops: [num_slots * any].
        bias: [num_slots * vocab_size].
        seen: [num_slots * vocab_size] twice the times that an id was sampled, plus 1 if it is in the prompt.
    """

    inverse_temperature: FloatArray
    greedy: Uint8Array
    top_k: IntArray
    top_p: FloatArray
    log_min_p: FloatArray
    repetition: FloatArray
    presence: FloatArray
    frequency: FloatArray
    penalized: Uint8Array
    biased: Uint8Array
    num_logprobs: IntArray
    steps: IntArray
    min_tokens: IntArray
    num_stops: IntArray
    uniforms: FloatArray
    stops: Int32Array
    bias: Float32Array
    seen: Int32Array


class Scratch(NamedTuple):
    """What one thread works in; [padded] are as many as the vocabulary's whole blocks.

    Attributes:
        scores: [padded] a row's scores.
        weights: [padded] how likely each id is sampled, in units of the likeliest one's probability.
        sums: [padded / BLOCK] of the weights of each block.
        buckets: [padded] classes of the scores, falling; NUM_BUCKETS is that of -inf.
        members: [padded] ids among which a cut is looked for.
        masses: [4 * (NUM_BUCKETS + 1)] weights of the classes.
        cut: [3] what `find_cut` finds.
    """

    scores: Float32Array
    weights: FloatArray
    sums: FloatArray
    buckets: Int32Array
    members: Int32Array
    masses: FloatArray
    cut: FloatArray


class Results(NamedTuple):
    """What comes out.

    Attributes:
        tokens: The id sampled.
        chosen: Its log-probability, where wanted.
        top_ids: [rows * any] the likeliest ids, in no order.
        top_scores: Their logits.
        peaks, log_sums: What to take off a logit for its log-probability, one after the other.
        num_top: How many there are.
    """

    tokens: IntArray
    chosen: FloatArray
    top_ids: Int32Array
    top_scores: Float32Array
    peaks: FloatArray
    log_sums: FloatArray
    num_top: IntArray


_OF_DTYPE = {
    FloatArray: types.FLOAT64S,
    Float32Array: types.FLOAT32S,
    IntArray: types.INT64S,
    Int32Array: types.INT32S,
    Uint8Array: types.Array(types.uint8),
}


def _kind(fields: type) -> types.NamedTuple:
    return types.NamedTuple(tuple(_OF_DTYPE[field] for field in fields.__annotations__.values()), fields)


SLOT_STATE, SCRATCH, RESULTS = _kind(SlotState), _kind(Scratch), _kind(Results)
