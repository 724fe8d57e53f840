"""Root-mean-square normalization of rows."""

import math

import numpy as np

from shared.kernels.compiling import compiled_for
from shared.kernels.intrinsics import LANES, take_ticket
from shared.kernels.types import Float32Array, Int64Array, Uint16Array, float32
from shared.kernels.vectors import load, repeat, store, total

ROWS = 64  # of a block

_KINDS = (
    {"x": Float32Array, "y": Float32Array},
    {"x": Float32Array, "y": Uint16Array},
    {"x": Uint16Array, "y": Uint16Array},
)


@compiled_for(*_KINDS)
def rms_norm(
    x: Float32Array, gain: Float32Array, epsilon: float32, y: Float32Array, inverses: Float32Array, counter: Int64Array
) -> None:
    """Write y = x * inverse * gain, where a row's inverse is 1 / sqrt(mean(x²) + epsilon)."""
    width, rows = gain.size, inverses.size
    first = take_ticket(counter, 0) * ROWS
    while first < rows:
        for row in range(first, min(first + ROWS, rows)):
            begin = row * width
            squares = repeat(np.float32(0))
            for i in range(0, width, LANES):
                numbers = load(x, begin + i, width - i)
                squares = squares + numbers * numbers
            inverse = np.float32(1) / np.float32(math.sqrt(total(squares) / np.float32(width) + epsilon))
            inverses[row] = inverse
            for i in range(0, width, LANES):
                left = width - i
                store(y, begin + i, load(x, begin + i, left) * inverse * load(gain, i, left), left)
        first = take_ticket(counter, 0) * ROWS


@compiled_for(*({**kinds, "by_x": kinds["x"]} for kinds in _KINDS))
def rms_norm_backward(
    x: Float32Array,
    gain: Float32Array,
    inverses: Float32Array,
    y: Float32Array,
    by_x: Float32Array,
    by_gain: Float32Array,
    counter: Int64Array,
) -> None:
    """Write the gradient by x, given that by y (in `y`), and for each block of rows its part of the one by the gain.

    With n = x * inverse: by_x = inverse * (by_y * gain - n * mean(by_y * gain * n)), by_gain = sum(by_y * n).
    """
    width, rows = gain.size, inverses.size
    block = take_ticket(counter, 0)
    while block * ROWS < rows:
        for i in range(width):
            by_gain[block * width + i] = np.float32(0)
        for row in range(block * ROWS, min(block * ROWS + ROWS, rows)):
            begin, inverse = row * width, inverses[row]
            products = repeat(np.float32(0))
            for i in range(0, width, LANES):
                left = width - i
                part = load(y, begin + i, left) * (load(x, begin + i, left) * inverse)
                store(by_gain, block * width + i, load(by_gain, block * width + i, left) + part, left)
                products = products + part * load(gain, i, left)
            mean = total(products) / np.float32(width) * inverse
            for i in range(0, width, LANES):
                left = width - i
                scaled = load(y, begin + i, left) * load(gain, i, left)
                store(by_x, begin + i, (scaled - load(x, begin + i, left) * mean) * inverse, left)
        block = take_ticket(counter, 0)
