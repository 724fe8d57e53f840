"""The products of `bfloat16`, bit for bit, by AMX tiles: where the processor has them and the system permits them.

A tile is a register of 16 rows of 64 bytes. One instruction multiplies 16 rows of 32 inputs with the weights of 16
outputs. Rows of a tile do not depend on one another.

    tile_product_G(panel, rounded, row, sums, begin)
        As `bfloat16_product_R`, for G times 16 rows from number `row` on, a multiple of 16. Their blocks are in order.
    has_tiles()
        Whether this code is compiled for tiles.
"""

from services.inference.engine.runner.cpu.kernels.bfloat16 import GROUP
from services.inference.engine.runner.cpu.kernels.layout import Panel
from shared.kernels.compiling import compiled
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.types import Float32Array, boolean, int64

_LLVM = "services.inference.engine.runner.cpu.kernels.tiles_llvm"
tile_product_1 = Intrinsic("tile_product_1", _LLVM)
tile_product_2 = Intrinsic("tile_product_2", _LLVM)
has_tiles = Intrinsic("has_tiles", _LLVM)


@compiled
def compiled_for_tiles() -> boolean:
    """Whether the processor has tiles."""
    return has_tiles()


@compiled
def tile_panel(panel: Panel, rounded: Float32Array, num_rows: int64, sums: Float32Array, begin: int64) -> None:
    """The product of all rounded rows with one panel; there are sums for whole tiles of rows."""
    row = 0
    while num_rows - row > GROUP:
        tile_product_2(panel, rounded, row, sums, begin)
        row += 2 * GROUP
    if num_rows > row:
        tile_product_1(panel, rounded, row, sums, begin)
