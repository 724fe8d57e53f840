"""Products of bfloat16 activations and bfloat16 weights, in the order of Intel's AMX tiles, on every processor.

Along the sum of an output, the inputs are taken in blocks of 32. In a block, the products of the even inputs are added
one after the other in float32, beginning with 0, and so are those of the odd inputs; the sum of the two is added to the
sum of the blocks before. (TDPBF16PS in Intel's manual; each addition is rounded to the nearest.)

Numbers below 2**-56 (1.4e-17) count as 0, in weights and in activations. So every product, and with it every sum, is a
multiple of 2**-126, which float32 holds as a normal number or 0: it makes no difference that some instructions take
subnormal numbers for 0, nor whether a product is rounded before it is added, as none needs rounding. All instructions
give the same bits as long as products and sums are finite. What is not finite stays so, or becomes NaN, and keeps to
its row; a NaN stays NaN when it is rounded.

A panel of weights has

    [2 halves of the outputs][blocks][16 pairs of inputs][16 outputs][2]    bfloat16

and rows of activations are kept, 16 side by side, as one of

    [rows / 16][blocks][16 rows][32]             bfloat16, in order, for `tiles`
    [rows / 16][blocks][8 groups][16 rows][4]    bfloat16 for VDPBF16PS, inputs 2, 0, 3, 1 of each group of four
    [rows / 16][blocks][8 groups][16 rows][4]    float32 elsewhere

    round_block(x, index, rounded, place, row, in_order)
        Round the 32 numbers from x[index] on into the block from rounded[place] on, as row `row` of 16.
    bfloat16_product_R(panel, rounded, row, sums, begin)
        As `panel_product_R`, for R rounded rows from number `row` on, all of the same 16, not in order; the sums begin
        with 0.
    has_pair_products()
        Whether the processor has AVX-512's dot products of pairs (VDPBF16PS): two additions in their order, here of
        inputs k and k + 2.
"""

from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, has_many_registers
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.types import Float32Array, boolean, int64

DEPTH = 32  # inputs of a block
GROUP = LANES  # rows that lie side by side
SMALLEST_BITS = (127 - 56) << 23  # of 2**-56 as a float32

_LLVM = "services.inference.engine.runner.cpu.kernels.bfloat16_llvm"
round_block = Intrinsic("round_block", _LLVM)
bfloat16_product_1 = Intrinsic("bfloat16_product_1", _LLVM)
bfloat16_product_2 = Intrinsic("bfloat16_product_2", _LLVM)
bfloat16_product_4 = Intrinsic("bfloat16_product_4", _LLVM)
bfloat16_product_8 = Intrinsic("bfloat16_product_8", _LLVM)
has_pair_products = Intrinsic("has_pair_products", _LLVM)


@compiled
def block_floats(in_order: boolean) -> int64:
    """The size of a block of 16 rows, in numbers of 32 bits."""
    return GROUP * DEPTH // (2 if in_order or has_pair_products() else 1)


@compiled
def round_rows(
    part: int64, num_parts: int64, x: Rows, num_rows: int64, depth: int64, rounded: Float32Array, in_order: boolean
) -> None:
    """Round one of `num_parts` parts of rows of `depth` numbers each, a multiple of DEPTH."""
    blocks, size = depth // DEPTH, block_floats(in_order)
    all_blocks = num_rows * blocks
    for number in range(all_blocks * part // num_parts, all_blocks * (part + 1) // num_parts):
        row, block = number // blocks, number % blocks
        place = (row // GROUP * blocks + block) * size
        round_block(x.values, row * x.stride + block * DEPTH, rounded, place, row % GROUP, in_order)


@compiled
def bfloat16_panel(panel: Panel, rounded: Float32Array, num_rows: int64, sums: Float32Array, begin: int64) -> None:
    """The product of all rounded rows with one panel."""
    row = 0
    if has_many_registers():
        while num_rows - row >= 8:
            bfloat16_product_8(panel, rounded, row, sums, begin)
            row += 8
        if num_rows - row >= 4:
            bfloat16_product_4(panel, rounded, row, sums, begin)
            row += 4
    while num_rows - row >= 2:
        bfloat16_product_2(panel, rounded, row, sums, begin)
        row += 2
    if num_rows > row:
        bfloat16_product_1(panel, rounded, row, sums, begin)
