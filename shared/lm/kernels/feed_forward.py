"""The activation of a gated feed-forward layer."""

import numpy as np

from shared.kernels.compiling import compiled_for
from shared.kernels.intrinsics import LANES, take_ticket
from shared.kernels.types import Float32Array, Int64Array, Uint16Array
from shared.kernels.vectors import exponential, load, repeat, store

_BLOCK = 1 << 13  # numbers


@compiled_for(
    {"gate": Float32Array, "up": Float32Array, "inner": Float32Array},
    {"gate": Uint16Array, "up": Uint16Array, "inner": Uint16Array},
)
def swiglu(gate: Float32Array, up: Float32Array, inner: Float32Array, counter: Int64Array) -> None:
    """Write silu(gate) * up, silu(x) being x / (1 + exp(-x))."""
    size = gate.size
    first = take_ticket(counter, 0) * _BLOCK
    while first < size:
        for i in range(first, min(first + _BLOCK, size), LANES):
            gates = load(gate, i, size - i)
            denominator = exponential(repeat(np.float32(0)) - gates) + np.float32(1)
            store(inner, i, gates * load(up, i, size - i) / denominator, size - i)
        first = take_ticket(counter, 0) * _BLOCK


@compiled_for(
    dict.fromkeys(("gate", "up", "by_inner", "by_gate", "by_up"), Float32Array),
    dict.fromkeys(("gate", "up", "by_inner", "by_gate", "by_up"), Uint16Array),
)
def swiglu_backward(
    gate: Float32Array,
    up: Float32Array,
    by_inner: Float32Array,
    by_gate: Float32Array,
    by_up: Float32Array,
    counter: Int64Array,
) -> None:
    """Write the gradients by both inputs, given that by the result."""
    size = gate.size
    first = take_ticket(counter, 0) * _BLOCK
    while first < size:
        for i in range(first, min(first + _BLOCK, size), LANES):
            left = size - i
            gates = load(gate, i, left)
            share = repeat(np.float32(1)) / (exponential(repeat(np.float32(0)) - gates) + np.float32(1))
            scaled = load(by_inner, i, left) * share
            store(by_up, i, scaled * gates, left)
            slope = gates * (np.float32(1) - share) + np.float32(1)
            store(by_gate, i, scaled * load(up, i, left) * slope, left)
        first = take_ticket(counter, 0) * _BLOCK
