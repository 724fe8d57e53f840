"""Linear layers of 8 bits against a block quantization written out in float64, and rows that know no neighbors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.inference.engine.runner.cpu.kernels.int8 import (
    BLOCK,
    BLOCK_BYTES,
    ROW_BLOCK_FLOATS,
    int8_panel,
    quantize_rows,
)
from services.inference.engine.runner.cpu.kernels.intrinsics import INT8, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from services.inference.engine.runner.cpu.panels import pack_panels

Floats = NDArray[np.float32]


def linear(weights: Floats, x: Floats, num_threads: int = 1) -> Floats:
    """What the kernels make of rows of activations: [rows, outputs]."""
    (outputs, inputs), rows = weights.shape, len(x)
    blocks, panels = -(-inputs // BLOCK), -(-outputs // PANEL)
    depth, stride = blocks * BLOCK, blocks * BLOCK + 16
    padded = np.zeros((panels * PANEL, depth), np.float32)
    padded[:outputs, :inputs] = weights
    packed = np.zeros(panels * blocks * BLOCK_BYTES, np.uint8)
    pack_panels(padded, INT8, packed)
    activations = np.zeros((rows, stride), np.float32)
    activations[:, :inputs] = x
    quantized = np.full(rows * blocks * ROW_BLOCK_FLOATS, 77, np.float32)
    for thread in reversed(range(num_threads)):
        quantize_rows(thread, num_threads, Rows(activations.reshape(-1), stride), rows, depth, quantized)
    out = np.full((rows, panels * PANEL), np.pi, np.float32)
    for panel in range(panels):
        weights_of_panel = Panel(packed, panel * blocks * BLOCK_BYTES, depth, INT8, gap=0, rows=rows)
        sums = np.full(rows * PANEL, np.pi, np.float32)
        int8_panel(weights_of_panel, quantized, rows, sums, 0)
        out[:, panel * PANEL : (panel + 1) * PANEL] = sums.reshape(rows, PANEL)
    return out[:, :outputs]


def reference(weights: Floats, x: Floats) -> NDArray[np.float64]:
    """The product of rounded weights and activations in float64."""
    return rounded(x, eight_bits=False) @ rounded(weights, eight_bits=True).T


def rounded(values: Floats, *, eight_bits: bool) -> NDArray[np.float64]:
    """Rounded, in blocks of 32, to whole multiples of a scale: the largest magnitude over 127, as in llama.cpp's q8_0.

    Where asked for, the scale is the next number above that has eight significant bits.
    """
    result = values.astype(np.float64)
    for row in result:
        for start in range(0, row.size, 32):
            block = row[start : start + 32]
            scale = np.abs(block).max() / 127
            if eight_bits:
                fraction, exponent = np.frexp(scale)
                scale = np.ldexp(np.ceil(fraction * 256) / 256, exponent)
            if scale > 0:
                block[:] = np.round(block / scale) * scale
    return result


@pytest.mark.parametrize("inputs", [64, 5, 1324])
@pytest.mark.parametrize("outputs", [80, 7])
@pytest.mark.parametrize("rows", [1, 15])
def test_products_are_those_of_the_blocks(rows: int, outputs: int, inputs: int) -> None:
    generator = np.random.default_rng(rows * outputs * inputs)
    weights = generator.normal(size=(outputs, inputs)).astype(np.float32)
    x = generator.normal(size=(rows, inputs)).astype(np.float32)
    error = np.abs(linear(weights, x) - reference(weights, x))
    # Float32 rounds a few numbers in the middle between two others the other way.
    assert np.quantile(error, 0.95) <= 1e-6 * inputs
    assert error.max() <= 1e-6 * inputs + 2 * np.abs(x).max() / 127 * np.abs(weights).max()


def test_numbers_that_need_no_rounding_are_exact() -> None:
    """Whole numbers up to 127, a 127 in each block, times powers of two: sums of integers, however they are added."""
    generator = np.random.default_rng(7)
    weights = generator.integers(-127, 128, size=(48, 320)).astype(np.float32)
    x = generator.integers(-127, 128, size=(9, 320)).astype(np.float32)
    weights[:, ::BLOCK] = 127
    x[:, 5::BLOCK] = -127
    expected = (x.astype(np.int64) @ weights.T.astype(np.int64)).astype(np.float32)
    assert np.array_equal(linear(weights / 1024, x * 8), expected / 128)


@pytest.mark.parametrize("extreme", [127, -127])
def test_the_largest_sums_do_not_overflow(extreme: int) -> None:
    weights, x = np.full((16, 64), 127, np.float32), np.full((8, 64), extreme, np.float32)
    assert np.array_equal(linear(weights, x), np.full((8, 16), 64 * 127 * extreme, np.float32))


@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 100),
    outputs=st.integers(1, 90),
    seed=st.integers(0, 1000),
    num_threads=st.integers(1, 3),
)
@settings(max_examples=40)
def test_a_row_is_bitwise_the_same_alone_and_among_others(
    rows: int, inputs: int, outputs: int, seed: int, num_threads: int
) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(outputs, inputs)).astype(np.float32)
    x = generator.normal(size=(rows, inputs)).astype(np.float32)
    together = linear(weights, x, num_threads)
    for row in range(rows):
        assert np.array_equal(linear(weights, x[row : row + 1])[0], together[row])


STRANGE = {
    "zeros": (0.0, 0.0),
    "an outlier": (1.0, 1e30),
    "subnormal": (1e-40, 1e-45),
    "tiny": (1e-31, 1e-35),
    "NaN": (1.0, np.nan),
    "infinite": (1.0, np.inf),
    "minus infinite": (1.0, -np.inf),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_rows_keep_to_themselves(name: str) -> None:
    generator = np.random.default_rng(3)
    weights = generator.normal(size=(32, 96)).astype(np.float32)
    x = generator.normal(size=(8, 96)).astype(np.float32)
    usual, special = STRANGE[name]
    strange = x.copy()
    strange[2] = usual
    strange[2, 40] = special
    alone, among = linear(weights, x), linear(weights, strange)
    others = [row for row in range(8) if row != 2]
    assert np.array_equal(alone[others], among[others])
    if np.isfinite(special):
        with np.errstate(under="ignore"):
            expected = reference(weights, strange[2:3])[0]
        assert np.allclose(among[2], expected, rtol=1e-5, atol=max(1e-28, 1e-5 * np.abs(expected).max()))
    else:
        assert np.all(np.isnan(among[2]))


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-31])
def test_weights_too_small_for_a_scale_are_zeros(value: float) -> None:
    weights = np.full((16, 32), value, np.float32)
    assert not linear(weights, np.ones((1, 32), np.float32)).any()
