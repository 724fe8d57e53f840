"""Products of bfloat16 compiled in this process: for the processor that NUMBA_CPU_NAME names, or with other intrinsics.

As a program it writes the bits of some products, for other processors' instructions to be compared with this one's.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.inference.engine.runner.cpu.kernels.bfloat16 import bfloat16_panel, round_rows
from services.inference.engine.runner.cpu.kernels.intrinsics import BFLOAT16, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Panel, Rows
from services.inference.engine.runner.cpu.kernels.linear import write_sums
from services.inference.engine.runner.cpu.panels import pack_panels
from shared.kernels.compiling import Kernel

Floats = NDArray[np.float32]
Product = Callable[..., Floats]


def compiled_product(panel_kernel: Kernel = bfloat16_panel, *, in_order: bool = False) -> Product:
    """A function of weights [outputs, inputs] and rows [rows, inputs], whole panels and blocks, and what to add to."""
    multiply = dispatcher(panel_kernel)

    def product(weights: Floats, x: Floats, add_to: Floats | None = None) -> Floats:
        (outputs, depth), rows = weights.shape, len(x)
        packed = np.zeros(2 * outputs * depth, np.uint8)
        pack_panels(weights, BFLOAT16, packed)
        whole = -(-rows // 16) * 16
        rounded = np.full(depth * whole, np.nan, np.float32)
        sums = np.full(PANEL * whole, np.pi, np.float32)
        out = np.full((rows, outputs), np.pi, np.float32) if add_to is None else add_to.copy()
        x = np.ascontiguousarray(x).reshape(-1)
        packed.flags.writeable = False
        multiply(packed, outputs // PANEL, depth, x, rounded, sums, rows, out.reshape(-1), in_order, add_to is not None)
        return out

    return product


def dispatcher(panel_kernel: Kernel) -> Any:
    """Numba's function that rounds all rows and multiplies them with all panels."""
    import numba

    from shared.kernels import building

    dispatchers: dict[str, Any] = {}
    kernels = (round_rows, panel_kernel, write_sums)
    round_all, multiply_panel, write = (building._dispatcher_of(one, dispatchers) for one in kernels)
    packed_type = numba.types.Array(numba.uint8, 1, "C", readonly=True)
    integer, floats, boolean = numba.int64, numba.float32[::1], numba.boolean
    signature = numba.void(packed_type, integer, integer, floats, floats, floats, integer, floats, boolean, boolean)

    @numba.njit(signature, error_model="numpy")  # type: ignore[untyped-decorator]
    def multiply(packed, panels, depth, x, rounded, sums, rows, out, in_order, add):  # type: ignore[no-untyped-def]
        round_all(0, 1, Rows(x, depth), rows, depth, rounded, in_order)
        for panel in range(panels):
            weights = Panel(packed, panel * PANEL * depth * 2, depth, BFLOAT16, gap=0, share=0, rows=rows)
            multiply_panel(weights, rounded, rows, sums, 0)
            write(sums, 0, rows, Rows(out, panels * PANEL), panel * PANEL, add)

    return multiply


def some_products(product: Product) -> Floats:
    """Of numbers of many magnitudes, the smallest that count among them."""
    generator = np.random.default_rng(0)
    found = []
    for rows, depth, spread in ((19, 96, 3), (6, 32, 25), (1, 544, 8)):
        weights, x = (
            (generator.normal(size=(size, depth)) * np.exp2(spread * generator.normal(size=(size, depth)))).clip(
                -1e9, 1e9
            )
            for size in (64, rows)
        )
        found.append(product(weights.astype(np.float32), x.astype(np.float32)).reshape(-1))
    return np.concatenate(found)


if __name__ == "__main__":
    some_products(compiled_product()).tofile(sys.argv[1])
