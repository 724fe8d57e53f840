"""Products of rows of activations with a packed matrix: the panels are shared among the threads, one by one.

Each output is one sum in the order of the matrix's depth, whatever rows are computed beside it and by which thread.
"""

from typing import NamedTuple

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
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows, Threads, Weights
from services.inference.engine.runner.cpu.kernels.phases import ROWS, finish_phase, take_item
from services.inference.engine.runner.cpu.kernels.tiles import tile_panel
from shared.kernels.compiling import compiled
from shared.kernels.types import Float32Array, Int64Array, boolean, int64


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
_LEAST_TILE_ROWS = 4  # for fewer, tiles are slower than vectors, by 4 to 11 %


@compiled
def linear(
    threads: Threads,
    phase: int64,
    weights: Weights,
    number: int64,
    x: Rows,
    num_rows: int64,
    converted: Float32Array,
    out: Rows,
    add: boolean,
) -> int64:
    """Write, or add, the product of `num_rows` rows of x with matrix `number`, and its biases; returns the next phase.

    Rows of x are 0 from the matrix's width to its depth; rows of `out` have room for all panels. `converted` is room
    for rows as `convert_rows` makes them.
    """
    matrix = described(weights.matrices, number)
    phase = convert_rows(threads, phase, matrix.kind, x, num_rows, matrix.depth, converted)
    size = panel_bytes(matrix.depth, matrix.kind)
    done, item = 0, take_item(threads, phase)
    while item < matrix.panels:
        column = item * PANEL
        gap = (threads.count - 1) * size  # the others take the panels between
        panel = Panel(weights.packed, matrix.begin + item * size, matrix.depth, matrix.kind, gap, num_rows)
        panel_product(panel, x, num_rows, converted, out, column, add)
        if matrix.bias >= 0:
            add_biases(weights.biases, matrix.bias + column, num_rows, out, column)
        done += 1
        item = take_item(threads, phase)
    return finish_phase(threads, phase, done, matrix.panels)


@compiled
def gated_linear(
    threads: Threads,
    phase: int64,
    weights: Weights,
    number: int64,
    x: Rows,
    num_rows: int64,
    converted: Float32Array,
    out: Rows,
    hidden: Rows,
) -> int64:
    """As `linear`, for a matrix without biases whose panels hold LANES gates and the LANES outputs that they gate.

    `hidden` gets silu(gate) * output.
    """
    matrix = described(weights.matrices, number)
    phase = convert_rows(threads, phase, matrix.kind, x, num_rows, matrix.depth, converted)
    size = panel_bytes(matrix.depth, matrix.kind)
    done, item = 0, take_item(threads, phase)
    while item < matrix.panels:
        column = item * PANEL
        gap = (threads.count - 1) * size  # the others take the panels between
        panel = Panel(weights.packed, matrix.begin + item * size, matrix.depth, matrix.kind, gap, num_rows)
        panel_product(panel, x, num_rows, converted, out, column, False)
        for row in range(num_rows):
            swiglu(out.values, row * out.stride + column, hidden.values, row * hidden.stride + item * LANES)
        done += 1
        item = take_item(threads, phase)
    return finish_phase(threads, phase, done, matrix.panels)


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
def panel_product(
    panel: Panel, x: Rows, num_rows: int64, converted: Float32Array, out: Rows, column: int64, add: boolean
) -> None:
    """The product of all rows with one panel, whose weights stay in the cache from one block of rows to the next."""
    if panel.kind == INT8:
        int8_panel(panel, converted, num_rows, out, column, add)
    elif takes_tiles(panel.kind, num_rows):
        tile_panel(panel, converted, num_rows, out, column, add)
    elif panel.kind == BFLOAT16 or panel.kind == BFLOAT16_TILES:
        bfloat16_panel(panel, converted, num_rows, out, column, add)
    else:
        float_panel(panel, x, num_rows, out, column, add)


@compiled
def float_panel(panel: Panel, x: Rows, num_rows: int64, out: Rows, column: int64, add: boolean) -> None:
    """As many rows at a time as there are registers for their sums."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        if has_many_registers() and left >= 12:
            panel_product_12(panel, x, row, out, column, add)
            row += 12
        elif has_many_registers() and left >= 8:
            panel_product_8(panel, x, row, out, column, add)
            row += 8
        elif not has_many_registers() and left >= 6:
            panel_product_6(panel, x, row, out, column, add)
            row += 6
        elif not has_many_registers() and left == 5:
            panel_product_5(panel, x, row, out, column, add)
            row += 5
        elif left >= 4:
            panel_product_4(panel, x, row, out, column, add)
            row += 4
        elif left >= 3:
            panel_product_3(panel, x, row, out, column, add)
            row += 3
        elif left == 2:
            panel_product_2(panel, x, row, out, column, add)
            row += 2
        else:
            panel_product_1(panel, x, row, out, column, add)
            row += 1
