"""The arrays that kernels work on, and their sizes."""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kernels.types import (
    Array,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Uint8Array,
    int64,
)

BLOCK = 128
"""Scores are gone through in blocks of this many."""

NUM_BUCKETS = 512
"""Classes of scores that a cut is looked for among."""

NUM_UNIFORMS = 64
"""Random numbers of a slot that are held ready."""

LogitArray = Annotated[NDArray[np.float32], Array(np.dtype("float32"), readonly=True)]


class Logits(NamedTuple):
    """The logits of some rows.

    Attributes:
        values: All of them.
        num_rows: How many rows there are.
        stride: How far they lie apart.
        size: Logits of a row.
        invalid: Ids that must not be sampled.
    """

    values: LogitArray
    num_rows: int64
    stride: int64
    size: int64
    invalid: Int32Array


class SlotState(NamedTuple):
    """The state of each slot; [num_slots] unless stated otherwise.

    Attributes:
        inverse_temperature: 1 / temperature.
        greedy: 1 where the most likely id is taken.
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

    inverse_temperature: Float64Array
    greedy: Uint8Array
    top_k: Int64Array
    top_p: Float64Array
    log_min_p: Float64Array
    repetition: Float64Array
    presence: Float64Array
    frequency: Float64Array
    penalized: Uint8Array
    biased: Uint8Array
    num_logprobs: Int64Array
    steps: Int64Array
    min_tokens: Int64Array
    num_stops: Int64Array
    uniforms: Float64Array
    stops: Int32Array
    bias: Float32Array
    seen: Int32Array


class Scratch(NamedTuple):
    """What one thread works in; [padded] are as many as the vocabulary's whole blocks.

    Attributes:
        scores: [padded] a row's scores.
        weights: [padded] how likely each id is sampled, in units of the most likely one's probability.
        sums: [padded / BLOCK] of the weights of each block.
        buckets: [padded] classes of the scores, falling; NUM_BUCKETS is that of -inf.
        members: [padded] ids among which a cut is looked for.
        masses: [4 * (NUM_BUCKETS + 1)] weights of the classes.
        cut: [3] what `find_cut` finds.
    """

    scores: Float32Array
    weights: Float64Array
    sums: Float64Array
    buckets: Int32Array
    members: Int32Array
    masses: Float64Array
    cut: Float64Array


class Results(NamedTuple):
    """What comes out.

    Attributes:
        tokens: The id sampled.
        chosen: Its log-probability, where wanted.
        top_ids: [rows * any] the most likely ids, in no order.
        top_scores: Their logits.
        peaks, log_sums: What to take off a logit for its log-probability, one after the other.
        num_top: How many there are.
    """

    tokens: Int64Array
    chosen: Float64Array
    top_ids: Int32Array
    top_scores: Float32Array
    peaks: Float64Array
    log_sums: Float64Array
    num_top: Int64Array
