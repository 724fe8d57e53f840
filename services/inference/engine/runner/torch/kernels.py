"""The kernels of a step on a GPU, in Triton. Each program computes a fixed tile in one order; see `Operations`.

A kernel is compiled once for prompts and for generated tokens: numbers that differ between them are not specialized on.
Products of float32 are exact to its rounding (`ieee`, no TF32). With 32 rows to a product at most, Triton chooses
`mma.sync` on all GPUs (compiled for capabilities 8.0, 9.0 and 12.0, none has another instruction).
"""

import triton
import triton.language as tl


@triton.jit
def norm(x, gain, out, eps, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """RMSNorm of a row of SIZE numbers."""
    at = tl.arange(0, PADDED)
    places = tl.program_id(0).to(tl.int64) * SIZE + at
    numbers = tl.load(x + places, at < SIZE, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / SIZE + eps)
    gains = tl.load(gain + at, at < SIZE, other=0.0).to(tl.float32)
    tl.store(out + places, (numbers * scale * gains).to(out.dtype.element_ty), at < SIZE)


@triton.jit
def _product(x, weight, rows, columns, is_row, is_column, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return x[rows] @ weight[columns]ᵀ in float32; both lie row after row with SIZE numbers each."""
    result = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for first in range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        left = tl.load(x + rows[:, None] * SIZE + at[None, :], is_row[:, None] & (at < SIZE)[None, :], other=0.0)
        right = tl.load(
            weight + columns[None, :] * SIZE + at[:, None], is_column[None, :] & (at < SIZE)[:, None], other=0.0
        )
        result = tl.dot(left, right, result, input_precision="ieee")
    return result


@triton.jit(do_not_specialize=["num_rows"])
def linear(
    x, weight, bias, residual, out, num_rows, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, IS_GATED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Out [num_rows, WIDTH] = x [num_rows, SIZE] @ weightᵀ + bias + residual, or silu(x @ gateᵀ) * (x @ upᵀ).

    A grid of row blocks and column blocks.
    """
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    is_row, is_column = rows < num_rows, columns < WIDTH
    result = _product(x, weight, rows, columns, is_row, is_column, SIZE, BLOCK)
    if IS_GATED:
        up = _product(x, weight, rows, columns + WIDTH, is_row, is_column, SIZE, BLOCK)
        result = result / (1.0 + tl.exp(-result)) * up
    if HAS_BIAS:
        result += tl.load(bias + columns, is_column, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None] * WIDTH + columns[None, :]
    is_place = is_row[:, None] & is_column[None, :]
    if HAS_RESIDUAL:
        result += tl.load(residual + places, is_place, other=0.0).to(tl.float32)
    tl.store(out + places, result.to(out.dtype.element_ty), is_place)


@triton.jit
def _kept(numbers, dtype):
    """In the dtype of the cache; what float16 cannot hold becomes NaN, see `as_kept`."""
    if dtype == tl.float16:
        numbers = tl.where(tl.abs(numbers) < 65520.0, numbers, float("nan"))
    return numbers.to(dtype)


@triton.jit(do_not_specialize_on_alignment=["positions", "indices"])
def rotate_and_write(
    qkv, queries, keys, values, positions, indices, cos, sin, query_gain, key_gain, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):  # fmt: skip
    """One head of one token: a query, a key or a value, in a grid of tokens and heads; HALF is padded DIM / 2."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, HALF)
    inside = half < DIM // 2
    source = qkv + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * DIM
    first = tl.load(source + half, inside, other=0.0).to(tl.float32)
    second = tl.load(source + DIM // 2 + half, inside, other=0.0).to(tl.float32)
    cell = tl.load(indices + token).to(tl.int64) * NUM_KV_HEADS
    if head >= NUM_HEADS + NUM_KV_HEADS:
        value = values + (cell + head - NUM_HEADS - NUM_KV_HEADS) * DIM
        tl.store(value + half, _kept(first, values.dtype.element_ty), inside)
        tl.store(value + DIM // 2 + half, _kept(second, values.dtype.element_ty), inside)
    else:
        if HAS_NORM:
            scale = 1.0 / tl.sqrt((tl.sum(first * first) + tl.sum(second * second)) / DIM + eps)
            gain = query_gain if head < NUM_HEADS else key_gain
            first *= scale * tl.load(gain + half, inside, other=0.0).to(tl.float32)
            second *= scale * tl.load(gain + DIM // 2 + half, inside, other=0.0).to(tl.float32)
        angle = tl.load(positions + token).to(tl.int64) * (DIM // 2) + half
        across, along = tl.load(cos + angle, inside, other=0.0), tl.load(sin + angle, inside, other=0.0)
        new_first, new_second = first * across - second * along, second * across + first * along
        if head < NUM_HEADS:
            query = queries + (token * NUM_HEADS + head) * DIM
            tl.store(query + half, new_first.to(queries.dtype.element_ty), inside)
            tl.store(query + DIM // 2 + half, new_second.to(queries.dtype.element_ty), inside)
        else:
            key = keys + (cell + head - NUM_HEADS) * DIM
            tl.store(key + half, _kept(new_first, keys.dtype.element_ty), inside)
            tl.store(key + DIM // 2 + half, _kept(new_second, keys.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["size", "num_groups"], do_not_specialize_on_alignment=["positions", "tables"])
def attend(
    queries, keys, values, positions, tables, mixed, peaks, totals, size, num_groups, scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """A group of `size` tokens with one key head, over every SPLITS-th chunk of positions: a grid of these three.

    Online softmax (Milakov & Gimelshein 2018, arXiv 1805.02867) over a part of the positions for each program, as in
    Flash-Decoding (Dao et al. 2023); `combine` joins them. Rows are tokens, and for each its MEMBERS (padded) heads.
    """
    group, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    row, channel = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    member, token = row % MEMBERS, group * size + row // MEMBERS
    is_row = (row // MEMBERS < size) & (member < NUM_HEADS // NUM_KV_HEADS)
    is_channel = channel < DIM
    position = tl.load(positions + token, is_row, other=-1)
    last = tl.max(position, 0)
    places = token * NUM_HEADS + head * (NUM_HEADS // NUM_KV_HEADS) + member
    query = tl.load(
        queries + places[:, None] * DIM + channel[None, :], is_row[:, None] & is_channel[None, :], other=0.0
    )
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    for first in range(split * CHUNK, last + 1, SPLITS * CHUNK):
        at = first + tl.arange(0, CHUNK)
        inside = at <= last
        block = tl.load(tables + (at // BLOCK_SIZE) * num_groups + group, inside, other=0).to(tl.int64)
        cell = ((block * BLOCK_SIZE + at % BLOCK_SIZE) * NUM_KV_HEADS + head) * DIM
        is_number = inside[:, None] & is_channel[None, :]
        key = tl.load(keys + cell[:, None] + channel[None, :], is_number, other=0.0).to(query.dtype)
        value = tl.load(values + cell[:, None] + channel[None, :], is_number, other=0.0).to(query.dtype)
        seen = at[None, :] <= position[:, None]
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # of rows that see nothing in this chunk
        weights, decay = tl.exp(scores - base[:, None]), tl.exp(peak - base)
        # A weight of 0 does not remove NaN of a later token of the group.
        is_finite = tl.abs(value.to(tl.float32)) < float("inf")
        spoils = tl.max((~is_finite).to(tl.int32), 1) > 0
        weights = tl.where(spoils[None, :] & seen, float("nan"), weights)
        total = total * decay + tl.sum(weights, 1)
        value = tl.where(is_finite, value, 0.0).to(query.dtype)
        result = result * decay[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        peak = new_peak
    parts = places * SPLITS + split
    tl.store(peaks + parts, peak, is_row)
    tl.store(totals + parts, total, is_row)
    is_used = is_row & (total != 0)
    tl.store(mixed + parts[:, None] * DIM + channel[None, :], result, is_used[:, None] & is_channel[None, :])


@triton.jit
def combine(mixed, peaks, totals, out, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SPLITS: tl.constexpr):
    """Join the parts of one head of one token: a grid of both."""
    place = tl.program_id(0).to(tl.int64)
    split, channel = tl.arange(0, SPLITS), tl.arange(0, PADDED_DIM)
    total, peak = tl.load(totals + place * SPLITS + split), tl.load(peaks + place * SPLITS + split)
    is_used = total != 0
    weight = tl.where(is_used, tl.exp(peak - tl.max(peak, 0)), 0.0)
    places = (place * SPLITS + split)[:, None] * DIM + channel[None, :]
    parts = tl.load(mixed + places, is_used[:, None] & (channel < DIM)[None, :], other=0.0)
    result = tl.sum(parts * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + place * DIM + channel, result.to(out.dtype.element_ty), channel < DIM)
