"""Products of rows of activations with a packed matrix: the panels are shared among the threads, ticket by ticket.

Each output is one sum in the order of the matrix's depth, whatever rows are computed beside it and by which thread.
"""

from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, BLOCK_BYTES, int8_panel, quantize_rows
from services.inference.engine.runner.cpu.kernels.intrinsics import (
    FLOAT32,
    INT8,
    LANES,
    PANEL,
    barrier,
    has_many_registers,
    panel_product_1,
    panel_product_2,
    panel_product_3,
    panel_product_4,
    panel_product_8,
    panel_product_12,
    swiglu,
    take_ticket,
)
from services.inference.engine.runner.cpu.kernels.layout import SYNC, WEIGHTS
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import BYTES, FLOAT32S, INT64S, UniTuple, boolean, int64

_MATRIX = UniTuple(int64, ("begin", "panels", "depth", "kind", "bias"))
MATRIX_WORDS = len(_MATRIX.names)
"""Words that describe a matrix: where its first panel begins in the bytes of all weights, how many panels it has, the
depth of each (a multiple of PANEL), the kind of its weights, and where its biases begin, -1 for none."""

_INPUT = (int64, int64, WEIGHTS, int64, FLOAT32S, int64, int64, FLOAT32S)


@compiled(types.void, *_INPUT, FLOAT32S, int64, boolean, SYNC, int64)
def linear(thread, num_threads, weights, number, x, stride, num_rows, quantized, out, out_stride, add, sync, ticket):
    """Write, or add, the product of `num_rows` rows of x with matrix `number`, and its biases; call it in all threads.

    Rows of x lie `stride` apart and are 0 from the matrix's width to its depth; rows of `out` lie `out_stride` apart,
    each with room for all panels. `quantized` is room for rows of 8 bits. `sync.tickets[ticket]` starts at 0.
    """
    begin, panels, depth, kind, bias = described(weights.matrices, number)
    quantize(thread, num_threads, kind, x, stride, num_rows, depth, quantized, sync.barrier)
    size = panel_bytes(depth, kind)
    panel = take_ticket(sync.tickets, ticket)
    while panel < panels:
        place, column = begin + panel * size, panel * PANEL
        panel_product(weights.packed, place, depth, kind, x, stride, num_rows, quantized, out, column, out_stride, add)
        if bias >= 0:
            add_biases(weights.biases, bias + column, num_rows, out, column, out_stride)
        panel = take_ticket(sync.tickets, ticket)


@compiled(types.void, *_INPUT, FLOAT32S, int64, FLOAT32S, int64, SYNC, int64)
def gated_linear(
    thread,
    num_threads,
    weights,
    number,
    x,
    stride,
    num_rows,
    quantized,
    out,
    out_stride,
    hidden,
    hidden_stride,
    sync,
    ticket,
):
    """As `linear`, for a matrix without biases whose panels hold LANES gates and the LANES outputs that they gate.

    Args:
        hidden: Gets silu(gate) * output; rows `hidden_stride` apart.
    """
    begin, panels, depth, kind, _ = described(weights.matrices, number)
    quantize(thread, num_threads, kind, x, stride, num_rows, depth, quantized, sync.barrier)
    size = panel_bytes(depth, kind)
    panel = take_ticket(sync.tickets, ticket)
    while panel < panels:
        place, column = begin + panel * size, panel * PANEL
        panel_product(
            weights.packed, place, depth, kind, x, stride, num_rows, quantized, out, column, out_stride, False
        )
        for row in range(num_rows):
            swiglu(out, row * out_stride + column, hidden, row * hidden_stride + panel * LANES)
        panel = take_ticket(sync.tickets, ticket)


@compiled(_MATRIX, INT64S, int64)
def described(matrices, number):
    """The words of a matrix."""
    word = number * MATRIX_WORDS
    return matrices[word], matrices[word + 1], matrices[word + 2], matrices[word + 3], matrices[word + 4]


@compiled(types.void, FLOAT32S, int64, int64, FLOAT32S, int64, int64)
def add_biases(biases, bias, num_rows, out, column, out_stride):
    """Add those of a panel to the outputs of each row."""
    for row in range(num_rows):
        for place in range(PANEL):
            out[row * out_stride + column + place] += biases[bias + place]


@compiled(types.void, int64, int64, int64, FLOAT32S, int64, int64, int64, FLOAT32S, INT64S)
def quantize(thread, num_threads, kind, x, stride, num_rows, depth, quantized, barrier_state):
    """Make rows of 8 bits of those of x, where the weights have 8 bits; the threads share the work, and wait."""
    if kind == INT8:
        quantize_rows(thread, num_threads, x, stride, num_rows, depth, quantized)
        barrier(barrier_state, num_threads)


@compiled(int64, int64, int64)
def panel_bytes(depth, kind):
    """Bytes of a panel."""
    if kind == INT8:
        return depth // BLOCK * BLOCK_BYTES
    return (4 if kind == FLOAT32 else 2) * PANEL * depth


@compiled(types.void, BYTES, int64, int64, int64, FLOAT32S, int64, int64, FLOAT32S, FLOAT32S, int64, int64, boolean)
def panel_product(weights, begin, depth, kind, x, stride, num_rows, quantized, out, column, out_stride, add):
    """The product of all rows with one panel, whose weights stay in the cache from one block of rows to the next."""
    if kind == INT8:
        int8_panel(weights, begin, depth, quantized, num_rows, out, column, out_stride, add)
    else:
        float_panel(weights, begin, depth, kind, x, stride, num_rows, out, column, out_stride, add)


@compiled(types.void, BYTES, int64, int64, int64, FLOAT32S, int64, int64, FLOAT32S, int64, int64, boolean)
def float_panel(weights, begin, depth, kind, x, stride, num_rows, out, column, out_stride, add):
    """As many rows at a time as there are registers for their sums."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        source, target = row * stride, row * out_stride + column
        if has_many_registers() and left >= 12:
            panel_product_12(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 12
        elif has_many_registers() and left >= 8:
            panel_product_8(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 8
        elif has_many_registers() and left >= 4:
            panel_product_4(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 4
        elif left >= 3:
            panel_product_3(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 3
        elif left == 2:
            panel_product_2(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 2
        else:
            panel_product_1(weights, begin, depth, kind, x, source, stride, out, target, out_stride, add)
            row += 1
