"""Rotation of the heads of queries and keys by their positions."""

from shared.kernels.compiling import compiled_for
from shared.kernels.intrinsics import LANES, take_ticket
from shared.kernels.types import Float32Array, Int64Array, Uint16Array, float32
from shared.kernels.vectors import load, store

_TOKENS = 16  # of a block


@compiled_for({"x": Float32Array, "out": Float32Array}, {"x": Uint16Array, "out": Uint16Array})
def rotate_heads(
    x: Float32Array,
    strides: Int64Array,
    cos: Float32Array,
    sin: Float32Array,
    direction: float32,
    out: Float32Array,
    out_strides: Int64Array,
    sizes: Int64Array,
    counter: Int64Array,
) -> None:
    """Rotate channel i with channel i + head_dim / 2 of each head by the angle of its position, times `direction`.

    `sizes` are windows, tokens, heads and head_dim; the strides are those of the first three. `cos` and `sin` have
    head_dim / 2 numbers for each position.
    """
    tokens, heads, half = sizes[1], sizes[2], sizes[3] // 2
    rows = sizes[0] * tokens
    first = take_ticket(counter, 0) * _TOKENS
    while first < rows:
        for row in range(first, min(first + _TOKENS, rows)):
            window, token = row // tokens, row % tokens
            for head in range(heads):
                source = window * strides[0] + token * strides[1] + head * strides[2]
                target = window * out_strides[0] + token * out_strides[1] + head * out_strides[2]
                for i in range(0, half, LANES):
                    left = half - i
                    a, b = load(x, source + i, left), load(x, source + half + i, left)
                    c, s = load(cos, token * half + i, left), load(sin, token * half + i, left) * direction
                    store(out, target + i, a * c - b * s, left)
                    store(out, target + half + i, b * c + a * s, left)
        first = take_ticket(counter, 0) * _TOKENS
