"""Products of rows in float32 with panels of weights."""

import numpy as np
import pytest

from services.inference.engine.runner.cpu.kernels.intrinsics import FLOAT32, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Activations, Panel, Rows, Threads, Weights
from services.inference.engine.runner.cpu.kernels.linear import WRITE, float_panel, linear, write_sums
from services.inference.engine.runner.cpu.kernels.phases import PHASE_WORDS

DEPTH, STRIDE = 160, 176  # not a whole number of the parts that few rows are multiplied with
BEGIN = 48  # of the sums
OUT_STRIDE = 48


def product(weights: "np.ndarray", x: "np.ndarray") -> "np.ndarray":
    """[rows, PANEL]; nothing around the sums is written."""
    rows = len(x) // STRIDE
    sums = np.full(BEGIN + (rows + 1) * PANEL, 7, np.float32)
    panel = Panel(weights.reshape(-1).view(np.uint8), 0, DEPTH, FLOAT32, gap=0, rows=rows)
    float_panel(panel, Rows(x, STRIDE), rows, sums, BEGIN)
    assert (sums[:BEGIN] == 7).all()
    assert (sums[-PANEL:] == 7).all()
    return sums[BEGIN:-PANEL].reshape(rows, PANEL)


@pytest.mark.parametrize("rows", range(1, 28))
def test_products_are_those_in_float64_and_the_same_for_any_number_of_rows(rows: int) -> None:
    generator = np.random.default_rng(rows)
    weights = generator.normal(size=(DEPTH, PANEL)).astype(np.float32)
    x = generator.normal(size=rows * STRIDE).astype(np.float32)
    found = product(weights, x)
    expected = x.reshape(rows, STRIDE)[:, :DEPTH].astype(np.float64) @ weights
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for row in range(rows):
        alone = product(weights, x[row * STRIDE : (row + 1) * STRIDE].copy())
        assert alone.tobytes() == found[row].tobytes()


@pytest.mark.parametrize("rows", [1, 2, 70])
@pytest.mark.parametrize("panels", [1, 4, 8, 9])
def test_a_matrix_gives_the_sums_of_its_panels(panels: int, rows: int) -> None:
    """A thread takes two panels at a time, where there are enough, for a single row only."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(panels, DEPTH, PANEL)).astype(np.float32)
    x = generator.normal(size=rows * STRIDE).astype(np.float32)
    biases = generator.normal(size=panels * PANEL).astype(np.float32)
    nothing, no_rows = np.zeros(0, np.float32), Rows(np.zeros(0, np.float32), 0)
    sums = Rows(np.full(rows * 2 * PANEL, np.nan, np.float32), rows * 2 * PANEL)
    work = Activations(*[no_rows] * 6, nothing, sums, nothing)
    packed = weights.reshape(-1).view(np.uint8)
    described = np.array([0, panels, DEPTH, FLOAT32, 0])
    matrix = Weights(packed, described, nothing, biases, nothing)
    out = Rows(np.full(rows * (panels * PANEL + 5), 7, np.float32), panels * PANEL + 5)
    threads = Threads(0, 1, np.zeros(PHASE_WORDS, np.int64))
    assert linear(threads, 0, matrix, 0, Rows(x, STRIDE), rows, work, out, WRITE) == 1
    found = out.values.reshape(rows, -1)
    assert (found[:, -5:] == 7).all()
    expected = np.hstack([product(one, x) for one in weights]) + biases
    assert found[:, :-5].tobytes() == expected.tobytes()


@pytest.mark.parametrize("add", [False, True])
def test_sums_are_written_or_added(add: bool) -> None:
    generator = np.random.default_rng(0)
    sums = generator.normal(size=5 * PANEL).astype(np.float32)
    sums[PANEL + 7] = -0.0
    start = generator.normal(size=5 * OUT_STRIDE).astype(np.float32)
    out = start.copy()
    write_sums(sums, PANEL, 4, Rows(out, OUT_STRIDE), 3, add)
    expected = start.reshape(5, OUT_STRIDE).copy()
    written = sums[PANEL:].reshape(4, PANEL)
    expected[:4, 3 : 3 + PANEL] = expected[:4, 3 : 3 + PANEL] + written if add else written
    assert out.tobytes() == expected.tobytes()
