"""Weights and activations of 8 bits, in blocks of 32 along the sum of an output, with a scale each.

The blocks are those of llama.cpp's q8_0; its file format is another.

Weights are quantized when the model is loaded. Each row of activations is quantized when it is used, in the same
blocks, so that it depends on no other row. The products of a block are added exactly, in integers; the blocks, scaled,
are added in their order in float32.

A panel of weights has, for each block,

    [8 groups][32 outputs][4]   uint8: the number, plus 128
    [32 outputs]                uint16: the bits of the scale as a bfloat16

and a quantized row of activations has, for each block,

    [32]                        int8; without byte products int16, inputs 0, 2, 1, 3 of each group
    1                           float32: the scale
    1                           int32: -128 times the sum of the numbers, which undoes the 128 that weights are given

    quantize_block(x, index, quantized, block)
        Quantize the 32 numbers from x[index] on into that block. The scale is the largest magnitude over 127. A NaN or
        an infinity makes it NaN, and with it all outputs of the row.
    int8_product_R(panel, quantized, row, sums, begin)
        As `panel_product_R`, for R quantized rows from number `row` on; the sums begin with 0.
    has_byte_products()
        Whether the processor adds products of bytes with one instruction.
"""

from services.inference.engine.runner.cpu.kernels.intrinsics import PANEL
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.types import Float32Array, int64

BLOCK = 32  # numbers along the sum that share a scale
GROUP = 4  # numbers along the sum that lie side by side: as many as one instruction multiplies and adds
BLOCK_BYTES = PANEL * (BLOCK + 2)
ROW_BLOCK_FLOATS = (2 * BLOCK + 8) // 4  # room for a block of a row
TINY = 1e-30  # a block of nothing larger is taken for zeros: 127 over it might be infinite

_LLVM = "services.inference.engine.runner.cpu.kernels.int8_llvm"
quantize_block = Intrinsic("quantize_block", _LLVM)
int8_product_1 = Intrinsic("int8_product_1", _LLVM)
int8_product_2 = Intrinsic("int8_product_2", _LLVM)
int8_product_4 = Intrinsic("int8_product_4", _LLVM)
int8_product_8 = Intrinsic("int8_product_8", _LLVM)
has_byte_products = Intrinsic("has_byte_products", _LLVM)


@compiled
def quantize_rows(
    part: int64, num_parts: int64, x: Rows, num_rows: int64, depth: int64, quantized: Float32Array
) -> None:
    """Quantize one of `num_parts` parts of rows of `depth` numbers each, a multiple of BLOCK."""
    blocks = depth // BLOCK
    all_blocks = num_rows * blocks
    for number in range(all_blocks * part // num_parts, all_blocks * (part + 1) // num_parts):
        row, block = number // blocks, number % blocks
        quantize_block(x.values, row * x.stride + block * BLOCK, quantized, number)


@compiled
def int8_panel(panel: Panel, quantized: Float32Array, num_rows: int64, sums: Float32Array, begin: int64) -> None:
    """The product of all quantized rows with one panel."""
    row = 0
    if has_byte_products():
        while num_rows - row >= 8:
            int8_product_8(panel, quantized, row, sums, begin)
            row += 8
    while num_rows - row >= 4:
        int8_product_4(panel, quantized, row, sums, begin)
        row += 4
    while num_rows - row >= 2:
        int8_product_2(panel, quantized, row, sums, begin)
        row += 2
    if num_rows > row:
        int8_product_1(panel, quantized, row, sums, begin)
