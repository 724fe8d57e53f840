"""Weights of each kind as the kernels read them."""

import numpy as np
from numpy.typing import NDArray

from services.inference.engine.runner.cpu.kernels.bfloat16 import DEPTH
from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, GROUP, TINY
from services.inference.engine.runner.cpu.kernels.intrinsics import BFLOAT16, FLOAT16, FLOAT32, INT8, LANES, PANEL
from services.inference.engine.runner.cpu.kernels.layout import Floats

KINDS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16, "int8": INT8}
"""The kinds of weights by the names that settings give them."""
KV_KINDS = {name: kind for name, kind in KINDS.items() if kind != INT8}
"""Those of keys and values."""


def number_bytes(kind: int) -> int:
    """Bytes of a number of a kind other than INT8."""
    return 4 if kind == FLOAT32 else 2


def pack_panels(weights: Floats, kind: int, target: NDArray[np.uint8]) -> None:
    """Write whole panels of weights.

    Args:
        weights: [outputs, inputs], multiples of PANEL; finite, and so when they are rounded.
        kind: What they become. All but float32 are rounded to the nearest, those of 16 bits each by itself, those of 8
            in blocks (see `kernels.int8`).
        target: The bytes of the panels, all zero.
    """
    panels = weights.reshape(-1, PANEL, weights.shape[1]).transpose(0, 2, 1)
    if kind == INT8:
        _pack_int8(weights, target)
    elif kind == FLOAT32:
        target.view(np.float32).reshape(panels.shape)[:] = panels
    elif kind == BFLOAT16:
        _pack_bfloat16(weights, target)
    else:
        target.view(np.float16).reshape(panels.shape)[:] = panels


def _pack_bfloat16(weights: Floats, target: NDArray[np.uint8]) -> None:
    """Round, count numbers below 2**-56 as 0, and put pairs of inputs side by side."""
    outputs, inputs = weights.shape
    bits = weights.view(np.uint32)
    rounded = np.where(np.abs(weights) < 2.0**-56, 0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    by_block = rounded.reshape(outputs // PANEL, PANEL // LANES, LANES, inputs // DEPTH, DEPTH // 2, 2)
    blocks = by_block.transpose(0, 1, 3, 4, 2, 5)
    target.view(np.uint16).reshape(blocks.shape)[:] = blocks


def _pack_int8(weights: Floats, target: NDArray[np.uint8]) -> None:
    """Quantize in blocks.

    A block's scale is its largest magnitude over 127, rounded up to a bfloat16: what is lost is the finest part of the
    range, nothing else, since the numbers are rounded with the scale that they are multiplied with.
    """
    outputs, inputs = weights.shape
    blocks = inputs // BLOCK
    numbers, scales = _quantized(weights.reshape(outputs // PANEL, PANEL, blocks, BLOCK))
    panels = target.reshape(outputs // PANEL, blocks, -1)
    grouped = numbers.reshape(-1, PANEL, blocks, BLOCK // GROUP, GROUP).transpose(0, 2, 3, 1, 4)
    panels[:, :, : PANEL * BLOCK] = grouped.reshape(-1, blocks, PANEL * BLOCK)
    panels[:, :, PANEL * BLOCK :] = np.ascontiguousarray(scales.transpose(0, 2, 1)).view(np.uint8)


def _quantized(weights: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """The numbers plus 128, in the same shape, and the bits of the scales of all blocks, which are the last axis."""
    largest = np.abs(weights).max(axis=-1)
    bits = (largest / np.float32(127)).view(np.uint32)
    scales = np.where(largest < TINY, 0, (bits + 0xFFFF) >> 16).astype(np.uint16)
    values = (scales.astype(np.uint32) << 16).view(np.float32)
    factors = np.where(values > 0, values, np.float32(np.inf))
    return (np.rint(weights / factors[..., None]) + 128).astype(np.uint8), scales
