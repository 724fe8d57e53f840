"""Linear layers with weights and activations of 8 bits, as llama.cpp's q8_0.

Weights are quantised when the model is loaded, in blocks of 32 along the sum of an output, each with a scale of its
own. Each row of activations is quantised when it is used, in the same blocks, so that it depends on no other row. The
products of a block are added exactly, in integers; the blocks, scaled, are added in their order in float32.

The weights of 16 outputs, a *panel*, lie together:

    weights       [panel][block][8 groups][16 outputs][4]   uint8, the number plus 128
    scales        [panel][block][16 outputs]                uint16, the bits of a bfloat16

and quantised rows

    quantized     [row][block][32]                          int8
    row_scales    [row][block]                              float32
    corrections   [row][block]                              int32, -128 times the sum of the block's numbers

Zeros fill up the last block and the last panel.
"""

import numpy as np
from numpy.typing import NDArray

from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.types import BYTES, FLOAT32S, INT32S, Array, int8, int64, uint16, void

BLOCK = 32  # numbers along the sum that share a scale
LANES = 16  # outputs of a panel
GROUP = 4  # numbers along the sum that lie side by side: as many as one instruction multiplies and adds

MAX_ROWS = 64  # rows that are quantised at once: they and a panel stay in the fast caches

_MACHINE = "services.inference.engine.cpu.kernels.int8_machine"
quantize_block = Intrinsic("quantize_block", _MACHINE)
tile_1x1 = Intrinsic("tile_1x1", _MACHINE)
tile_1x4 = Intrinsic("tile_1x4", _MACHINE)
tile_2x1 = Intrinsic("tile_2x1", _MACHINE)
tile_4x1 = Intrinsic("tile_4x1", _MACHINE)
tile_8x1 = Intrinsic("tile_8x1", _MACHINE)

_INT8S = Array(int8)
_UINT16S = Array(uint16, readonly=True)


@compiled(void, FLOAT32S, int64, int64, int64, int64, _INT8S, FLOAT32S, INT32S)
def quantize_rows(
    x: NDArray[np.float32],
    at: int,
    pitch: int,
    rows: int,
    inputs: int,
    quantized: NDArray[np.int8],
    row_scales: NDArray[np.float32],
    corrections: NDArray[np.int32],
) -> None:
    """Quantise rows of `inputs` numbers, of which the first begins at `x[at]` and the next `pitch` behind it."""
    blocks = (inputs + BLOCK - 1) // BLOCK
    for row in range(rows):
        for block in range(blocks):
            start = block * BLOCK
            count = min(BLOCK, inputs - start)
            number = row * blocks + block
            quantize_block(x, at + row * pitch + start, count, quantized, row_scales, corrections, number)


@compiled(void, BYTES, _UINT16S, int64, int64, _INT8S, FLOAT32S, INT32S, int64, int64, FLOAT32S, int64, int64)
def multiply_rows(
    weights: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    panel: int,
    end: int,
    quantized: NDArray[np.int8],
    row_scales: NDArray[np.float32],
    corrections: NDArray[np.int32],
    rows: int,
    blocks: int,
    out: NDArray[np.float32],
    at: int,
    pitch: int,
) -> None:
    """The outputs of panels `panel` up to `end` for quantised rows.

    That of the first row and of panel 0 begins at `out[at]`, that of the next row `pitch` behind it.
    """
    if rows == 1:
        while panel + 4 <= end:
            tile_1x4(
                weights, scales, panel, quantized, row_scales, corrections, 0, blocks, out, at + panel * LANES, pitch
            )
            panel += 4
    while panel < end:
        place = at + panel * LANES
        row = 0
        while row + 8 <= rows:
            tile_8x1(weights, scales, panel, quantized, row_scales, corrections, row, blocks, out, place, pitch)
            row, place = row + 8, place + 8 * pitch
        if row + 4 <= rows:
            tile_4x1(weights, scales, panel, quantized, row_scales, corrections, row, blocks, out, place, pitch)
            row, place = row + 4, place + 4 * pitch
        if row + 2 <= rows:
            tile_2x1(weights, scales, panel, quantized, row_scales, corrections, row, blocks, out, place, pitch)
            row, place = row + 2, place + 2 * pitch
        if row < rows:
            tile_1x1(weights, scales, panel, quantized, row_scales, corrections, row, blocks, out, place, pitch)
        panel += 1
