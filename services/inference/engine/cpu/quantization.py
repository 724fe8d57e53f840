"""Weights of 8 bits, quantised in blocks with a scale each and laid out as the kernels read them."""

import numpy as np
from numpy.typing import NDArray

from services.inference.engine.cpu.kernels.int8 import BLOCK, GROUP, LANES

_TINY = 1e-30  # a block of nothing larger is taken for zeros
_PANELS_AT_ONCE = 64  # packed at a time, to need little memory beside the weights


def pack_int8(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Quantise and pack the weights of a linear layer.

    A block's scale is its largest magnitude over 127, rounded up to a bfloat16: what is lost is the finest part of the
    range, nothing else, since the numbers are rounded with the scale that they are multiplied with.

    Args:
        weights: [outputs, inputs], finite.

    Returns:
        Weights and scales as above.
    """
    outputs, inputs = weights.shape
    panels, blocks = -(-outputs // LANES), -(-inputs // BLOCK)
    packed = np.empty((panels, blocks, BLOCK // GROUP, LANES, GROUP), np.uint8)
    packed_scales = np.empty((panels, blocks, LANES), np.uint16)
    for panel in range(0, panels, _PANELS_AT_ONCE):
        some = weights[panel * LANES : (panel + _PANELS_AT_ONCE) * LANES]
        num_panels = -(-len(some) // LANES)
        padded = np.zeros((num_panels * LANES, blocks * BLOCK), np.float32)
        padded[: len(some), :inputs] = some
        numbers, scales = _quantized(padded.reshape(num_panels, LANES, blocks, BLOCK))
        grouped = numbers.reshape(num_panels, LANES, blocks, BLOCK // GROUP, GROUP)
        packed[panel : panel + num_panels] = grouped.transpose(0, 2, 3, 1, 4)
        packed_scales[panel : panel + num_panels] = scales.transpose(0, 2, 1)
    return packed.reshape(-1), packed_scales.reshape(-1)


def _quantized(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """The numbers, of the same shape, and the scales of all blocks, which are the last axis."""
    largest = np.abs(weights).max(axis=-1)
    bits = (largest / np.float32(127)).view(np.uint32)
    scales = np.where(largest < _TINY, 0, (bits + 0xFFFF) >> 16).astype(np.uint16)
    values = (scales.astype(np.uint32) << 16).view(np.float32)
    factors = np.where(values > 0, values, np.float32(np.inf))
    return (np.rint(weights / factors[..., None]) + 128).astype(np.uint8), scales
