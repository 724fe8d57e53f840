"""The arrays that a step works on, as its kernels are handed them.

Rows of activations lie a multiple of LANES apart that is no power of two, so that many rows fit in a cache at once.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.kernels.types import BYTES, FLOAT32S, INT64S
from shared.kernels.types import NamedTuple as NamedTupleType

Floats = NDArray[np.float32]
Words = NDArray[np.int64]


class Shape(NamedTuple):
    """The sizes of a model and of what is allocated for it, in the order in which kernels read them."""

    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_head_norm: int
    num_blocks: int
    wide: int  # the distance of rows of the residual stream
    qkv: int  # of rows of queries, keys and values
    attended: int
    gate_up: int
    hidden: int
    logits: int
    scores: int  # numbers of a head's scores
    sums: int  # of a head's sums
    scratch: int  # of a thread


(
    D_MODEL,
    NUM_LAYERS,
    NUM_HEADS,
    NUM_KV_HEADS,
    HEAD_DIM,
    HAS_HEAD_NORM,
    NUM_BLOCKS,
    WIDE,
    QKV,
    ATTENDED,
    GATE_UP,
    HIDDEN,
    LOGITS,
    SCORES,
    SUMS,
    SCRATCH,
) = range(len(Shape._fields))


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

    packed: NDArray[np.uint8]
    matrices: Words
    gains: Floats
    biases: Floats
    embedding: Floats


class Cache(NamedTuple):
    """Keys and values of all layers, blocks and heads, see `attention`."""

    keys: Floats
    values: Floats


class Plan(NamedTuple):
    """The tokens of a step.

    Attributes:
        tokens: Their ids.
        positions: Where each stands in its sequence.
        tables: Where the numbers of its sequence's blocks begin in `blocks`.
        blocks: Those of all segments.
        outputs: Tokens, by their place in the step, whose logits are wanted.
    """

    tokens: Words
    positions: Words
    tables: Words
    blocks: Words
    outputs: Words


class Activations(NamedTuple):
    """What is computed, a row for each token; `scratch` has a part for each thread instead.

    `quantized` holds the rows that a product of 8 bits takes (see `int8`); it is empty where there are none.
    """

    residual: Floats
    normed: Floats
    qkv: Floats
    attended: Floats
    gate_up: Floats
    hidden: Floats
    logits: Floats
    quantized: Floats
    scratch: Floats


class Sync(NamedTuple):
    """What threads meet at: the state of the barrier, and tickets, which are 0 when a step begins."""

    barrier: Words
    tickets: Words


def _type_of(kind: type, **others: Any) -> NamedTupleType:
    return NamedTupleType(tuple(others.get(name, FLOAT32S) for name in kind._fields), kind)  # type: ignore[attr-defined]


WEIGHTS = _type_of(Weights, packed=BYTES, matrices=INT64S)
CACHE = _type_of(Cache)
PLAN = NamedTupleType((INT64S,) * len(Plan._fields), Plan)
ACTIVATIONS = _type_of(Activations)
SYNC = NamedTupleType((INT64S,) * len(Sync._fields), Sync)
