"""The arrays that a step works on, as its kernels are handed them.

Rows of activations lie a multiple of LANES apart that is no power of two, so that many rows fit in a cache at once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kernels.types import Bytes, Float32Array, Int64Array, Uint8Array, float32, int64

Floats = NDArray[np.float32]
Words = NDArray[np.int64]


class Shape(NamedTuple):
    """The sizes of a model and of what is allocated for it."""

    d_model: int64
    num_layers: int64
    num_heads: int64
    num_kv_heads: int64
    head_dim: int64
    has_head_norm: int64
    key_bytes: int64  # of the keys of a block in a layer
    layer_bytes: int64  # of its keys and values
    scores: int64  # numbers of a head's scores
    sums: int64  # of a head's sums
    scratch: int64  # of a thread


class Weights(NamedTuple):
    """What a model has learned.

    Attributes:
        packed: The bytes of all matrices, see `weights`.
        matrices: MATRIX_WORDS of each (see `linear`): of each layer the queries, keys and values as one, the output of
            attention, gates and inner outputs as one, the output of the feed-forward part; then the logits.
        gains: Of each layer, the norm before attention and that before the feed-forward part, each rounded up to whole
            vectors with 0, and the norms of queries and of keys; then the last norm.
        biases: Those of matrices that have any, each for all outputs of the matrix's panels.
        embedding: [vocab_size, d_model].
    """

    packed: Bytes
    matrices: Int64Array
    gains: Float32Array
    biases: Float32Array
    embedding: Float32Array


class Cache(NamedTuple):
    """Keys and values of all blocks, layers and heads, see `attention`.

    Attributes:
        memory: Their bytes.
        kind: Of their numbers: FLOAT32, BFLOAT16 or FLOAT16.
        number_bytes: Of each.
    """

    memory: Uint8Array
    kind: int64
    number_bytes: int64


class Batch(NamedTuple):
    """The tokens of a step.

    Attributes:
        tokens: Their ids.
        positions: Where each stands in its sequence.
        tables: Where the numbers of its sequence's blocks begin in `blocks`.
        blocks: Those of all segments.
        outputs: Tokens, by their place in the step, whose logits are wanted.
    """

    tokens: Int64Array
    positions: Int64Array
    tables: Int64Array
    blocks: Int64Array
    outputs: Int64Array


class Rows(NamedTuple):
    """Rows of numbers that lie `stride` apart."""

    values: Float32Array
    stride: int64


class Panel(NamedTuple):
    """A panel of weights.

    Attributes:
        packed: The bytes of all weights.
        begin: Where it begins.
        depth: Its inputs.
        kind: Of its weights.
        gap: Bytes from its end to the panel that its thread probably takes next, which is prefetched.
        share: Bytes of that panel that are requested for each row, if they are many.
        rows: How many it is multiplied with.
    """

    packed: Bytes
    begin: int64
    depth: int64
    kind: int64
    gap: int64 = 0
    share: int64 = 0
    rows: int64 = 1


class Activations(NamedTuple):
    """What is computed, a row for each token; `sums` and `scratch` have a part for each thread instead.

    `converted` holds the rows that products of 8 bits and of bfloat16 take (see `int8` and `bfloat16`); it is
    empty where there are none.
    """

    residual: Rows
    normed: Rows
    qkv: Rows
    attended: Rows
    hidden: Rows
    logits: Rows
    converted: Float32Array
    sums: Rows
    scratch: Float32Array


class Threads(NamedTuple):
    """The threads that may run a step.

    Attributes:
        thread: The number of this one.
        count: How many there are.
        phases: PHASE_WORDS for each phase, see `phases`; 0 when the step begins.
    """

    thread: int64
    count: int64
    phases: Int64Array


class Step(NamedTuple):
    """What a step reads and writes.

    Attributes:
        shape: The sizes.
        epsilon: Of all norms.
        weights: What the model has learned.
        rotation: Of each position, head_dim / 2 cosines and as many sines.
        cache: Keys and values.
        batch: The tokens.
        work: What is computed of them.
        num_rows: How many tokens there are, or how many outputs.
    """

    shape: Shape
    epsilon: float32
    weights: Weights
    rotation: Float32Array
    cache: Cache
    batch: Batch
    work: Activations
    num_rows: int64
