"""The parts of causal attention that are no matrix products.

Row r of scores belongs to the query at position r % `keys`, and has `keys` numbers.
"""

import math

import numpy as np

from shared.kernels.compiling import compiled_for
from shared.kernels.intrinsics import LANES, take_ticket
from shared.kernels.types import Float32Array, Int64Array, Uint16Array, float32, int64
from shared.kernels.vectors import exponential, first_lanes, larger, largest, load, repeat, store, total

_ROWS = 16  # of a block
_TOKENS = 16


@compiled_for({"scores": Float32Array}, {"scores": Uint16Array})
def causal_shares(
    scores: Float32Array,
    keys: int64,
    scale: float32,
    sums: Float32Array,
    log_sums: Float32Array,
    counter: Int64Array,
) -> None:
    """Turn scores into exp(scale * score - largest), 0 beyond the position; write the sums, and log(sum) + largest."""
    rows, low = sums.size, np.float32(-np.inf)
    start = take_ticket(counter, 0) * _ROWS
    while start < rows:
        for row in range(start, min(start + _ROWS, rows)):
            begin, count = row * keys, row % keys + 1
            peaks, shares = repeat(low), repeat(np.float32(0))
            for i in range(0, count, LANES):
                peaks = larger(first_lanes(load(scores, begin + i, count - i), count - i, low), peaks)
            peak = largest(peaks) * scale
            for i in range(0, count, LANES):
                share = exponential(load(scores, begin + i, keys - i) * scale - peak)
                share = first_lanes(share, count - i, np.float32(0))
                store(scores, begin + i, share, keys - i)
                shares = shares + share
            for i in range((count + LANES - 1) // LANES * LANES, keys, LANES):
                store(scores, begin + i, repeat(np.float32(0)), keys - i)
            sums[row] = total(shares)
            log_sums[row] = peak + np.float32(math.log(sums[row]))
        start = take_ticket(counter, 0) * _ROWS


@compiled_for({"scores": Float32Array, "by_shares": Float32Array}, {"scores": Uint16Array, "by_shares": Uint16Array})
def causal_shares_backward(
    scores: Float32Array,
    by_shares: Float32Array,
    keys: int64,
    scale: float32,
    log_sums: Float32Array,
    means: Float32Array,
    counter: Int64Array,
) -> None:
    """Turn scores into shares of attention, and the gradient by shares into that by scores.

    The gradient is share * (by_share - mean) * scale, the mean being the row's sum of share * by_share.
    """
    rows = log_sums.size
    start = take_ticket(counter, 0) * _ROWS
    while start < rows:
        for row in range(start, min(start + _ROWS, rows)):
            begin, count = row * keys, row % keys + 1
            for i in range(0, count, LANES):
                left = keys - i
                share = exponential(load(scores, begin + i, left) * scale - log_sums[row])
                share = first_lanes(share, count - i, np.float32(0))
                store(scores, begin + i, share, left)
                store(by_shares, begin + i, share * (load(by_shares, begin + i, left) - means[row]) * scale, left)
            for i in range((count + LANES - 1) // LANES * LANES, keys, LANES):
                store(scores, begin + i, repeat(np.float32(0)), keys - i)
                store(by_shares, begin + i, repeat(np.float32(0)), keys - i)
        start = take_ticket(counter, 0) * _ROWS


@compiled_for({"mixed": Float32Array, "out": Float32Array}, {"mixed": Uint16Array, "out": Uint16Array})
def merge_heads(
    mixed: Float32Array, sums: Float32Array, heads: int64, tokens: int64, out: Float32Array, counter: Int64Array
) -> None:
    """Write [windows, tokens, heads, head_dim] of `mixed` [windows, heads, tokens, head_dim], each row over its sum."""
    rows = sums.size
    head_dim, count = out.size // rows, rows // heads
    first = take_ticket(counter, 0) * _TOKENS
    while first < count:
        for row in range(first, min(first + _TOKENS, count)):
            window, token = row // tokens, row % tokens
            for head in range(heads):
                source = (window * heads + head) * tokens + token
                target, factor = (row * heads + head) * head_dim, np.float32(1) / sums[source]
                for i in range(0, head_dim, LANES):
                    left = head_dim - i
                    store(out, target + i, load(mixed, source * head_dim + i, left) * factor, left)
        first = take_ticket(counter, 0) * _TOKENS


@compiled_for(
    dict.fromkeys(("by_out", "out", "by_mixed"), Float32Array),
    dict.fromkeys(("by_out", "out", "by_mixed"), Uint16Array),
)
def split_heads(
    by_out: Float32Array,
    out: Float32Array,
    heads: int64,
    tokens: int64,
    by_mixed: Float32Array,
    means: Float32Array,
    counter: Int64Array,
) -> None:
    """Write [windows, heads, tokens, head_dim] of `by_out` [windows, tokens, heads, head_dim], and sums of products.

    Those are of `by_out` and `out` in each row; the means that `causal_shares_backward` needs: of share * by_share.
    """
    rows = means.size
    head_dim, count = out.size // rows, rows // heads
    first = take_ticket(counter, 0) * _TOKENS
    while first < count:
        for row in range(first, min(first + _TOKENS, count)):
            window, token = row // tokens, row % tokens
            for head in range(heads):
                target = (window * heads + head) * tokens + token
                source, products = (row * heads + head) * head_dim, repeat(np.float32(0))
                for i in range(0, head_dim, LANES):
                    left = head_dim - i
                    part = load(by_out, source + i, left)
                    products = products + part * load(out, source + i, left)
                    store(by_mixed, target * head_dim + i, part, left)
                means[target] = total(products)
        first = take_ticket(counter, 0) * _TOKENS
