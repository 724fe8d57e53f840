"""Products with one panel of weights."""

import numpy as np
import pytest

from services.inference.engine.runner.cpu.kernels.intrinsics import FLOAT32, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from services.inference.engine.runner.cpu.kernels.linear import float_panel

DEPTH, STRIDE, OUT_STRIDE = 96, 112, 48


def product(weights: "np.ndarray", x: "np.ndarray", out: "np.ndarray", *, add: bool) -> None:
    rows = len(x) // STRIDE
    panel = Panel(weights.reshape(-1).view(np.uint8), 0, DEPTH, FLOAT32, gap=0, rows=rows)
    float_panel(panel, Rows(x, STRIDE), rows, Rows(out, OUT_STRIDE), 3, add)


@pytest.mark.parametrize("rows", range(1, 28))
def test_products_are_those_in_float64_and_the_same_for_any_number_of_rows(rows: int) -> None:
    generator = np.random.default_rng(rows)
    weights = generator.normal(size=(DEPTH, PANEL)).astype(np.float32)
    x = generator.normal(size=rows * STRIDE).astype(np.float32)
    out = np.full(rows * OUT_STRIDE, 7, np.float32)
    product(weights, x, out, add=False)
    found = out.reshape(rows, OUT_STRIDE)
    expected = x.reshape(rows, STRIDE)[:, :DEPTH].astype(np.float64) @ weights
    np.testing.assert_allclose(found[:, 3 : 3 + PANEL], expected, atol=1e-4)
    assert (np.delete(found, range(3, 3 + PANEL), axis=1) == 7).all()
    for row in range(rows):
        alone = np.zeros(OUT_STRIDE, np.float32)
        product(weights, x[row * STRIDE : (row + 1) * STRIDE].copy(), alone, add=False)
        assert alone[3 : 3 + PANEL].tobytes() == found[row, 3 : 3 + PANEL].tobytes()


def test_a_product_is_added_to_what_is_there() -> None:
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(DEPTH, PANEL)).astype(np.float32)
    x = generator.normal(size=5 * STRIDE).astype(np.float32)
    start = generator.normal(size=5 * OUT_STRIDE).astype(np.float32)
    added, plain = start.copy(), np.zeros_like(start)
    product(weights, x, added, add=True)
    product(weights, x, plain, add=False)
    assert added.tobytes() == (start + plain).tobytes()
