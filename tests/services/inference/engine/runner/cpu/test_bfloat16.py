"""Products of bfloat16 numbers, bit for bit against the order of Intel's tiles written out in NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.inference.engine.runner.cpu.kernels.bfloat16 import bfloat16_panel, round_rows
from services.inference.engine.runner.cpu.kernels.intrinsics import BFLOAT16, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from services.inference.engine.runner.cpu.kernels.linear import write_sums
from services.inference.engine.runner.cpu.panels import pack_panels

Floats = NDArray[np.float32]
SMALLEST = 2.0**-56


def product(weights: Floats, x: Floats, num_threads: int = 1, add_to: Floats | None = None) -> Floats:
    """What the kernels make of rows: [rows, outputs]; whole panels of outputs, whole blocks of inputs."""
    (outputs, depth), rows = weights.shape, len(x)
    packed = np.zeros(2 * outputs * depth, np.uint8)
    pack_panels(weights, BFLOAT16, packed)
    stride = depth + 16
    activations = np.zeros((rows, stride), np.float32)
    activations[:, :depth] = x
    rounded = np.full(depth * -(-rows // 16) * 16, np.nan, np.float32)
    for thread in reversed(range(num_threads)):
        round_rows(thread, num_threads, Rows(activations.reshape(-1), stride), rows, depth, rounded, False)
    out = np.full((rows, outputs), np.pi, np.float32) if add_to is None else add_to.copy()
    sums = np.full(rows * PANEL, np.pi, np.float32)
    for panel in range(outputs // PANEL):
        of_panel = Panel(packed, panel * PANEL * depth * 2, depth, BFLOAT16, gap=0, rows=rows)
        bfloat16_panel(of_panel, rounded, rows, sums, 0)
        write_sums(sums, 0, rows, Rows(out.reshape(-1), outputs), panel * PANEL, add_to is not None)
    return out


def reference(weights: Floats, x: Floats) -> Floats:
    """The sums of even and odd inputs by 32 (Intel's manual, TDPBF16PS); every addition is one of NumPy in float32."""
    weights, x = rounded(weights), rounded(x)
    total = np.zeros((len(x), len(weights)), np.float32)
    for block in range(0, x.shape[1], 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for k in range(block, block + 32, 2):
            even += np.outer(x[:, k], weights[:, k])
            odd += np.outer(x[:, k + 1], weights[:, k + 1])
        total += even + odd
    return total


def rounded(values: Floats) -> Floats:
    """By torch, to the nearest, ties to even; NaN stays NaN."""
    nearest: Floats = torch.from_numpy(np.ascontiguousarray(values)).bfloat16().float().numpy()
    return np.where(np.abs(values) < SMALLEST, np.float32(0), nearest)


def same_bits(found: Floats, expected: Floats) -> bool:
    """NaN are equal to each other; 0 and -0 are not."""
    are_nan = np.isnan(found) & np.isnan(expected)
    return bool(np.all(are_nan | (found.view(np.uint32) == expected.view(np.uint32))))


def numbers(seed: int, *shape: int, spread: float = 3.0) -> Floats:
    """Of many magnitudes."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape) * np.exp2(generator.normal(size=shape) * spread)
    return values.astype(np.float32)


@pytest.mark.parametrize("depth", [32, 96, 512])
@pytest.mark.parametrize("rows", [*range(1, 19), 33])
def test_products_are_those_of_the_order_of_tiles(rows: int, depth: int) -> None:
    weights, x = numbers(rows, 64, depth), numbers(depth, rows, depth)
    expected = reference(weights, x)
    assert same_bits(product(weights, x), expected)
    exact = rounded(x).astype(np.float64) @ rounded(weights).astype(np.float64).T
    scale = np.abs(rounded(x)).astype(np.float64) @ np.abs(rounded(weights)).astype(np.float64).T
    assert np.all(np.abs(expected - exact) <= depth * 2.0**-24 * scale)


def test_the_order_is_not_that_of_the_inputs() -> None:
    """So that the test above would see another order."""
    weights, x = numbers(0, 32, 512), numbers(1, 4, 512)
    straight = np.zeros((4, 32), np.float32)
    for k in range(512):
        straight += np.outer(rounded(x)[:, k], rounded(weights)[:, k])
    assert not same_bits(product(weights, x), straight)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 4), st.integers(1, 3))
def test_a_row_is_bitwise_the_same_alone_and_among_others(seed: int, rows: int, blocks: int, num_threads: int) -> None:
    weights, x = numbers(seed, 32, 32 * blocks), numbers(seed + 1, rows, 32 * blocks)
    together = product(weights, x, num_threads)
    for row in range(rows):
        assert same_bits(together[row : row + 1], product(weights, x[row : row + 1]))


@pytest.mark.parametrize("spread", [20.0, 28.0])
def test_small_numbers_have_the_same_bits_on_all_instructions(spread: float) -> None:
    """Products of the smallest numbers that count, subnormal numbers, and sums that cancel almost all."""
    weights, x = numbers(2, 32, 96, spread=spread), numbers(3, 20, 96, spread=spread)
    for values in (weights, x):
        values[np.abs(values) > 1e15] = 1.0
        values[0, :8] = [
            SMALLEST,
            -SMALLEST,
            np.nextafter(np.float32(SMALLEST), np.float32(0)),
            1e-38,
            -1e-40,
            1e-45,
            -0.0,
            0,
        ]
    x[1, 1::2], x[1, 0::2] = 0, np.resize([SMALLEST, -SMALLEST * (1 + 2.0**-7)], 48)
    weights[:, 0::2] = np.resize([SMALLEST, SMALLEST * (1 + 2.0**-7)], (32, 48))
    expected = reference(weights, x)
    assert same_bits(product(weights, x), expected)
    assert np.all((expected == 0) | (np.abs(expected) >= 2.0**-126)), "no sum is subnormal"


def test_numbers_below_the_smallest_count_as_zero() -> None:
    one, below = np.ones((1, 32), np.float32), np.full((32, 32), np.nextafter(np.float32(SMALLEST), np.float32(0)))
    assert np.all(product(below, one) == 0)
    assert np.all(product(np.full((32, 32), SMALLEST, np.float32), one) == 32 * SMALLEST)
    assert np.all(product(np.ones((32, 32), np.float32), below[:1]) == 0)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800001], ids=hex)
def test_every_nan_stays_one_and_keeps_to_its_row(bits: int) -> None:
    """Rounded as numbers are, 0x7FFFFFFF would become -0 and 0x7F800001 an infinity."""
    weights, x = numbers(4, 32, 64), numbers(5, 9, 64)
    clean = product(weights, x)
    x[3, 17] = np.array([bits], np.uint32).view(np.float32)[0]
    found = product(weights, x)
    assert np.all(np.isnan(found[3]))
    assert same_bits(np.delete(found, 3, 0), np.delete(clean, 3, 0))


def test_infinities_and_what_rounds_to_them() -> None:
    weights, x = np.ones((32, 32), np.float32), np.zeros((4, 32), np.float32)
    x[0, 5], x[1, 6], x[2, 7], x[2, 9] = math.inf, -3.4e38, math.inf, -math.inf
    found = product(weights, x)
    assert np.all(found[0] == math.inf)
    assert np.all(found[1] == -math.inf)  # the largest bfloat16 is 3.39e38
    assert np.all(np.isnan(found[2]))
    assert np.all(found[3] == 0)


def test_a_product_is_added_to_what_is_there() -> None:
    weights, x, start = numbers(6, 64, 64), numbers(7, 13, 64), numbers(8, 13, 64)
    assert same_bits(product(weights, x, add_to=start), start + product(weights, x))
