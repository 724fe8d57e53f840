"""Products of rows of activations with a packed matrix: the panels are shared among the threads, one by one.

Each output is one sum in the order of the matrix's depth, whatever rows are computed beside it and by which thread.
"""

from typing import NamedTuple

import numpy as np

from services.inference.engine.runner.cpu.kernels.bfloat16 import bfloat16_panel, round_rows
from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, BLOCK_BYTES, int8_panel, quantize_rows
from services.inference.engine.runner.cpu.kernels.intrinsics import (
    BFLOAT16,
    BFLOAT16_TILES,
    FLOAT32,
    INT8,
    LANES,
    PANEL,
    has_many_registers,
    pair_product,
    panel_product_1,
    panel_product_2,
    panel_product_3,
    panel_product_4,
    panel_product_5,
    panel_product_6,
    panel_product_8,
    panel_product_12,
    swiglu,
)
from services.inference.engine.runner.cpu.kernels.layout import Activations, Panel, Rows, Threads, Weights
from services.inference.engine.runner.cpu.kernels.phases import ROWS, finish_phase, take_item
from services.inference.engine.runner.cpu.kernels.tiles import tile_panel
from shared.kernels.compiling import compiled, compiled_and_inlined, inlined
from shared.kernels.types import Bytes, Float32Array, Int64Array, boolean, int64


class Matrix(NamedTuple):
    """The words that describe a matrix.

    Attributes:
        begin: Where its first panel begins in the bytes of all weights.
        panels: Their number.
        depth: Of each; a multiple of PANEL.
        kind: Of its weights.
        bias: Where its biases begin, -1 for none.
    """

    begin: int64
    panels: int64
    depth: int64
    kind: int64
    bias: int64


MATRIX_WORDS = len(Matrix._fields)
WRITE, ADD, GATE = range(3)
"""What becomes of the sums of a panel. GATE is for a matrix without biases whose panels hold LANES gates and the LANES
outputs that they gate."""
_INPUTS = 64  # of a panel that are multiplied with a few rows at a time: 8 KiB of weights in float32
_FEW_ROWS = 64  # with more, reading the rows in parts costs more than reading the panel again
_LEAST_PAIRS = 4  # for each thread, so that none waits long for the others
_LEAST_TILE_ROWS = 4  # for fewer, tiles are slower than vectors, by 4 to 11 %


@compiled
def linear(
    threads: Threads,
    phase: int64,
    weights: Weights,
    number: int64,
    x: Rows,
    num_rows: int64,
    work: Activations,
    out: Rows,
    then: int64,
) -> int64:
    """Multiply `num_rows` rows of x with matrix `number`; returns the next phase.

    Rows of x are 0 from the matrix's width to its depth; rows of `out` have room for all panels.

    Args:
        threads: All of them; each calls this.
        phase: Of the step.
        weights: Have the matrix.
        number: Of the matrix.
        x: The rows.
        num_rows: How many.
        work: Has room for converted rows and sums.
        out: Receives the outputs.
        then: What becomes of the sums: WRITE or ADD to `out`, with biases; or GATE, see above.
    """
    matrix = described(weights.matrices, number)
    phase = convert_rows(threads, phase, matrix.kind, x, num_rows, matrix.depth, work.converted)
    together = panels_together(threads, matrix, num_rows)
    items = (matrix.panels + together - 1) // together
    done, item = 0, take_item(threads, phase)
    while item < items:
        first = item * together
        count = min(together, matrix.panels - first)
        sums = multiply(threads, weights.packed, matrix, first, count, x, num_rows, work)
        for panel in range(count):
            begin = sums + panel * PANEL
            if then == GATE:
                gate(work.sums.values, begin, num_rows, out, (first + panel) * LANES)
            else:
                column = (first + panel) * PANEL
                write_sums(work.sums.values, begin, num_rows, out, column, then == ADD)
                if matrix.bias >= 0:
                    add_biases(weights.biases, matrix.bias + column, num_rows, out, column)
        done += 1
        item = take_item(threads, phase)
    return finish_phase(threads, phase, done, items)


@compiled
def described(matrices: Int64Array, number: int64) -> Matrix:
    """The words of a matrix."""
    word = number * MATRIX_WORDS
    return Matrix(matrices[word], matrices[word + 1], matrices[word + 2], matrices[word + 3], matrices[word + 4])


@compiled
def add_biases(biases: Float32Array, bias: int64, num_rows: int64, out: Rows, column: int64) -> None:
    """Add those of a panel to the outputs of each row."""
    for row in range(num_rows):
        for place in range(PANEL):
            out.values[row * out.stride + column + place] += biases[bias + place]


@compiled
def convert_rows(
    threads: Threads, phase: int64, kind: int64, x: Rows, num_rows: int64, depth: int64, converted: Float32Array
) -> int64:
    """Make of the rows of x what weights of this kind are multiplied with; returns the next phase."""
    if kind != INT8 and kind != BFLOAT16 and kind != BFLOAT16_TILES:
        return phase
    parts = max(threads.count, num_rows // ROWS)
    done, part = 0, take_item(threads, phase)
    while part < parts:
        if kind == INT8:
            quantize_rows(part, parts, x, num_rows, depth, converted)
        else:
            round_rows(part, parts, x, num_rows, depth, converted, takes_tiles(kind, num_rows))
        done += 1
        part = take_item(threads, phase)
    return finish_phase(threads, phase, done, parts)


@compiled
def takes_tiles(kind: int64, num_rows: int64) -> boolean:
    """Whether a product is computed by tiles."""
    return kind == BFLOAT16_TILES and num_rows >= _LEAST_TILE_ROWS


@compiled
def panel_bytes(depth: int64, kind: int64) -> int64:
    """Bytes of a panel."""
    if kind == INT8:
        return depth // BLOCK * BLOCK_BYTES
    return (4 if kind == FLOAT32 else 2) * PANEL * depth


@compiled
def panels_together(threads: Threads, matrix: Matrix, num_rows: int64) -> int64:
    """How many panels a thread takes at a time.

    Two for a single row, where there are enough for all threads: processors without AVX-512 (measured on Zen 3) read
    faster from two places of memory than from one.
    """
    is_single = num_rows == 1 and matrix.kind == FLOAT32 and not has_many_registers()
    return 2 if is_single and matrix.panels >= 2 * _LEAST_PAIRS * threads.count else 1


@compiled
def multiply(
    threads: Threads,
    packed: Bytes,
    matrix: Matrix,
    first: int64,
    count: int64,
    x: Rows,
    num_rows: int64,
    work: Activations,
) -> int64:
    """The product of all rows with `count` panels, of which there are two only for one row.

    Returns:
        Where its sums begin in `work.sums`, [rows][PANEL]; those of a second panel follow.
    """
    sums, begin = work.sums.values, threads.thread * work.sums.stride
    size = panel_bytes(matrix.depth, matrix.kind)
    gap = (threads.count - 1) * size  # the others take the panels between
    start = matrix.begin + first * size
    panel = Panel(packed, start, matrix.depth, matrix.kind, gap, size // num_rows, num_rows)
    if count == 2:
        pair_product(panel, x, sums, begin)
    elif panel.kind == INT8:
        int8_panel(panel, work.converted, num_rows, sums, begin)
    elif takes_tiles(panel.kind, num_rows):
        tile_panel(panel, work.converted, num_rows, sums, begin)
    elif panel.kind == BFLOAT16 or panel.kind == BFLOAT16_TILES:
        bfloat16_panel(panel, work.converted, num_rows, sums, begin)
    else:
        float_panel(panel, x, num_rows, sums, begin)
    return begin


@compiled_and_inlined
def write_sums(sums: Float32Array, begin: int64, num_rows: int64, out: Rows, column: int64, add: boolean) -> None:
    """Write, or add, the sums of a panel to the outputs of each row."""
    for row in range(num_rows):
        source, target = begin + row * PANEL, row * out.stride + column
        for place in range(PANEL):
            total = sums[source + place]
            out.values[target + place] = out.values[target + place] + total if add else total


@inlined
def gate(sums: Float32Array, begin: int64, num_rows: int64, out: Rows, column: int64) -> None:
    """Write silu(gate) * output of a panel's LANES gates and outputs."""
    for row in range(num_rows):
        swiglu(sums, begin + row * PANEL, out.values, row * out.stride + column)


@compiled
def float_panel(panel: Panel, x: Rows, num_rows: int64, sums: Float32Array, begin: int64) -> None:
    """The product of all rows with one panel.

    Where rows are few and registers too, all of them are multiplied with some of its inputs before others are read: the
    weights of these stay in the first cache from one block of rows to the next.
    """
    for place in range(begin, begin + num_rows * PANEL):
        sums[place] = np.float32(0.0)
    is_split = 2 < num_rows <= _FEW_ROWS and not has_many_registers()
    inputs = _INPUTS if is_split else panel.depth
    size = panel_bytes(inputs, panel.kind)
    for start in range(0, panel.depth, inputs):
        count = min(inputs, panel.depth - start)
        gap = panel.gap if start + count == panel.depth else 0
        place = panel.begin + panel_bytes(start, panel.kind)
        part = Panel(panel.packed, place, count, panel.kind, gap, size // num_rows, num_rows)
        multiply_part(part, x, num_rows, start, sums, begin)


@compiled
def multiply_part(part: Panel, x: Rows, num_rows: int64, start: int64, sums: Float32Array, begin: int64) -> None:
    """As many rows at a time as there are registers for their sums."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        if has_many_registers() and left >= 12:
            panel_product_12(part, x, row, start, sums, begin)
            row += 12
        elif has_many_registers() and left >= 8:
            panel_product_8(part, x, row, start, sums, begin)
            row += 8
        elif not has_many_registers() and left >= 6:
            panel_product_6(part, x, row, start, sums, begin)
            row += 6
        elif not has_many_registers() and left == 5:
            panel_product_5(part, x, row, start, sums, begin)
            row += 5
        elif left >= 4:
            panel_product_4(part, x, row, start, sums, begin)
            row += 4
        elif left >= 3:
            panel_product_3(part, x, row, start, sums, begin)
            row += 3
        elif left == 2:
            panel_product_2(part, x, row, start, sums, begin)
            row += 2
        else:
            panel_product_1(part, x, row, start, sums, begin)
            row += 1
