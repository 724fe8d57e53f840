"""Cross-entropy of rows of logits, and its gradient in their place."""

import math

import numpy as np

from shared.kernels.compiling import compiled_for
from shared.kernels.intrinsics import LANES, take_ticket
from shared.kernels.types import Float32Array, Int64Array, Uint16Array, boolean, float32
from shared.kernels.vectors import exponential, first_lanes, larger, largest, load, repeat, store, total

_ROWS = 8  # of a block


@compiled_for({"logits": Float32Array}, {"logits": Uint16Array})
def cross_entropy(
    logits: Float32Array,
    targets: Int64Array,
    counts: Float32Array,
    z_loss: float32,
    with_gradient: boolean,
    target_logits: Float32Array,
    log_denominators: Float32Array,
    counter: Int64Array,
) -> None:
    """Write the logit of each row's target, and the log of its softmax's denominator.

    With the gradient, each row of logits becomes counts * (softmax * (1 + 2 z_loss log_denominator) - target's one).
    """
    rows = targets.size
    width = logits.size // rows
    low = np.float32(-np.inf)
    first = take_ticket(counter, 0) * _ROWS
    while first < rows:
        for row in range(first, min(first + _ROWS, rows)):
            begin = row * width
            peaks, sums = repeat(low), repeat(np.float32(0))
            for i in range(0, width, LANES):
                peaks = larger(first_lanes(load(logits, begin + i, width - i), width - i, low), peaks)
            peak = largest(peaks)
            for i in range(0, width, LANES):
                shares = exponential(load(logits, begin + i, width - i) - peak)
                sums = sums + first_lanes(shares, width - i, np.float32(0))
            denominator = peak + np.float32(math.log(total(sums)))
            log_denominators[row] = denominator
            place = begin + targets[row]
            target_logits[row] = total(load(logits, place, 1))
            if with_gradient:
                factor = counts[row] * (np.float32(1) + np.float32(2) * z_loss * denominator)
                share = exponential(load(logits, place, 1) - denominator) * factor - counts[row]
                for i in range(0, width, LANES):
                    shares = exponential(load(logits, begin + i, width - i) - denominator)
                    store(logits, begin + i, shares * factor, width - i)
                store(logits, place, share, 1)
        first = take_ticket(counter, 0) * _ROWS
