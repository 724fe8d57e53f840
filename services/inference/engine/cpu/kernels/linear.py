"""Products of rows of activations with a packed matrix: the panels are shared among the threads, ticket by ticket.

Each output is one sum in the order of the matrix's depth, whatever rows are computed beside it and by which thread.
"""

from services.inference.engine.cpu.kernels.intrinsics import (
    LANES,
    PANEL,
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
from shared.kernels import types
from shared.kernels.compiling import compiled
from shared.kernels.types import BYTES, FLOAT32S, INT64S, boolean, int64

MATRIX_WORDS = 4
"""Words that describe a matrix: where its first panel begins in the bytes of all weights, how many panels it has, the
depth of each (a multiple of PANEL), and the kind of its weights."""

FLOAT32 = 0
"""The kinds of weights."""


@compiled(types.void, INT64S, int64, BYTES, FLOAT32S, int64, int64, FLOAT32S, int64, boolean, INT64S, int64)
def linear(matrices, number, weights, x, stride, num_rows, out, out_stride, add, tickets, ticket):
    """Write, or add, the product of `num_rows` rows of x with a matrix; call it in all threads.

    `matrices` describes each matrix in MATRIX_WORDS, this one as number `number`, and `weights` holds them all. Rows of
    x lie `stride` apart and are 0 from the matrix's width to its depth; rows of `out` lie `out_stride` apart, each with
    room for all panels. `tickets[ticket]` starts at 0.
    """
    begin, panels = matrices[number * MATRIX_WORDS], matrices[number * MATRIX_WORDS + 1]
    depth, kind = matrices[number * MATRIX_WORDS + 2], matrices[number * MATRIX_WORDS + 3]
    size = panel_bytes(depth, kind)
    panel = take_ticket(tickets, ticket)
    while panel < panels:
        panel_product(
            weights, begin + panel * size, depth, kind, x, stride, num_rows, out, panel * PANEL, out_stride, add
        )
        panel = take_ticket(tickets, ticket)


@compiled(types.void, INT64S, int64, BYTES, FLOAT32S, int64, int64, FLOAT32S, int64, FLOAT32S, int64, INT64S, int64)
def gated_linear(
    matrices, number, weights, x, stride, num_rows, out, out_stride, hidden, hidden_stride, tickets, ticket
):
    """As `linear`, for a matrix whose panels hold LANES gates and the LANES outputs that they gate.

    Args:
        hidden: Gets silu(gate) * output; rows `hidden_stride` apart.
    """
    begin, panels = matrices[number * MATRIX_WORDS], matrices[number * MATRIX_WORDS + 1]
    depth, kind = matrices[number * MATRIX_WORDS + 2], matrices[number * MATRIX_WORDS + 3]
    size = panel_bytes(depth, kind)
    panel = take_ticket(tickets, ticket)
    while panel < panels:
        column = panel * PANEL
        panel_product(weights, begin + panel * size, depth, kind, x, stride, num_rows, out, column, out_stride, False)
        for row in range(num_rows):
            swiglu(out, row * out_stride + column, hidden, row * hidden_stride + panel * LANES)
        panel = take_ticket(tickets, ticket)


@compiled(int64, int64, int64)
def panel_bytes(depth, kind):  # noqa: ARG001  # one kind until others come
    """Bytes of a panel."""
    return 4 * PANEL * depth


@compiled(types.void, BYTES, int64, int64, int64, FLOAT32S, int64, int64, FLOAT32S, int64, int64, boolean)
def panel_product(weights, begin, depth, kind, x, stride, num_rows, out, column, out_stride, add):  # noqa: ARG001
    """The product of all rows with one panel, whose weights stay in the cache from one block of rows to the next."""
    float32_panel(weights, begin, depth, x, stride, num_rows, out, column, out_stride, add)


@compiled(types.void, BYTES, int64, int64, FLOAT32S, int64, int64, FLOAT32S, int64, int64, boolean)
def float32_panel(weights, begin, depth, x, stride, num_rows, out, column, out_stride, add):
    """As many rows at a time as there are registers for their sums."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        source, target = row * stride, row * out_stride + column
        if has_many_registers() and left >= 12:
            panel_product_12(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 12
        elif has_many_registers() and left >= 8:
            panel_product_8(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 8
        elif has_many_registers() and left >= 4:
            panel_product_4(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 4
        elif left >= 3:
            panel_product_3(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 3
        elif left == 2:
            panel_product_2(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 2
        else:
            panel_product_1(weights, begin, depth, x, source, stride, out, target, out_stride, add)
            row += 1
