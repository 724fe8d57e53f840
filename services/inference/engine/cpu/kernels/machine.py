"""What `intrinsics` declares of vectors, for Numba: imported only to compile.

It is written in LLVM's portable vector types, in the order of operations that `intrinsics` promises: LLVM may choose
instructions, but changes no order of floating-point operations.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from services.inference.engine.cpu.kernels.intrinsics import BFLOAT16, CHAINS, FLOAT16, FLOAT32, LANES, PANEL, TILE
from services.inference.engine.cpu.kernels.vectors import (
    BIT,
    BYTE,
    FLOAT,
    ZERO,
    Loop,
    address,
    broadcast,
    exponential,
    fold,
    from_bfloat16,
    from_float16,
    lanes_below,
    load,
    load_halves,
    multiply_add,
    offset,
    prefetch,
    splat,
    store,
    store_or_add,
    word,
)

_VECTORS = PANEL // LANES  # of a panel
_AHEAD_BYTES = 4096  # how far before its use a weight is asked for: where a page ends, processors stop by themselves
_LINE_BYTES = 64


def _panel_product(rows: int):
    def product(typing_context, weights, offset_, depth, kind, x, index, stride, out, out_index, out_stride, add):
        def generate(context, builder, signature, arguments):
            weights, begin, depth, kind, x, index, stride, out, out_index, out_stride, add = arguments
            kinds = signature.args
            panel = address(context, builder, kinds[0], weights, begin, BYTE)
            start = address(context, builder, kinds[4], x, index, FLOAT)
            activations = [offset(builder, start, builder.mul(stride, word(row))) for row in range(rows)]
            target = address(context, builder, kinds[7], out, out_index, FLOAT)
            done = builder.append_basic_block("done")
            choice = builder.switch(kind, done)
            for one, of_kind in _WEIGHTS.items():
                block = builder.append_basic_block("of_kind")
                choice.add_case(word(one), block)
                builder.position_at_end(block)
                sums = _accumulate(builder, panel, of_kind, depth, activations)
                for row, of_row in enumerate(sums):
                    for number, total in enumerate(of_row):
                        place = builder.add(builder.mul(out_stride, word(row)), word(number * LANES))
                        store_or_add(builder, total, offset(builder, target, place), add)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        number = types.int64
        return (
            types.void(weights, number, number, number, x, number, number, out, number, number, types.boolean),
            generate,
        )

    return intrinsic(product)


panel_product_1 = _panel_product(1)
panel_product_2 = _panel_product(2)
panel_product_3 = _panel_product(3)
panel_product_4 = _panel_product(4)
panel_product_8 = _panel_product(8)
panel_product_12 = _panel_product(12)


class _Weights(NamedTuple):
    """How weights of a kind are read: their bytes, and a function from the address of LANES of them to a vector."""

    size: int
    load: Callable[[Any, Any], Any]


_WEIGHTS = {
    FLOAT32: _Weights(4, load),
    BFLOAT16: _Weights(2, lambda builder, pointer: from_bfloat16(builder, load_halves(builder, pointer))),
    FLOAT16: _Weights(2, lambda builder, pointer: from_float16(builder, load_halves(builder, pointer))),
}


def _accumulate(builder, panel, of_kind, depth, activations):
    """The sums of all rows, a list of vectors each, over a depth that is a multiple of 4."""
    # LLVM moves the loads of several inputs to the front, where with many rows they fit in no registers.
    unroll = 4 if len(activations) <= 3 else 1
    loop = Loop(builder, [ZERO] * (len(activations) * _VECTORS), unroll)
    sums = list(loop.state)
    line = PANEL * of_kind.size
    ahead = offset(builder, panel, builder.mul(loop.index, word(line)))
    for begin in range(0, unroll * line, _LINE_BYTES):
        prefetch(builder, offset(builder, ahead, _AHEAD_BYTES + begin))
    for step in range(unroll):
        k = builder.add(loop.index, word(step))
        first = offset(builder, panel, builder.mul(k, word(line)))
        weights = [
            of_kind.load(builder, offset(builder, first, LANES * of_kind.size * number)) for number in range(_VECTORS)
        ]
        for row, pointer in enumerate(activations):
            activation = broadcast(builder, builder.load(offset(builder, pointer, k)))
            for number, weight in enumerate(weights):
                place = row * _VECTORS + number
                sums[place] = multiply_add(builder, weight, activation, sums[place])
    loop.close(depth, sums)
    # The last pass's values; its body dominates what follows.
    return [sums[row * _VECTORS : (row + 1) * _VECTORS] for row in range(len(activations))]


@intrinsic
def sum_of_squares(typing_context, x, index, count):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        x, index, count = arguments
        start = address(context, builder, signature.args[0], x, index, FLOAT)
        loop = Loop(builder, [ZERO], LANES)
        vector = load(builder, offset(builder, start, loop.index))
        total = multiply_add(builder, vector, vector, loop.state[0])
        loop.close(count, [total])
        return fold(builder, total, builder.fadd)

    return types.float32(x, types.int64, types.int64), generate


@intrinsic
def dot_keys(
    typing_context, q, q_1, q_2, q_3, q_4, keys, key_1, key_2, key_3, key_4, ahead, depth, scores, s_1, s_2, s_3, s_4
):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, keys, ahead, depth, scores = (arguments[place] for place in (0, 5, 10, 11, 12))
        kinds = signature.args
        queries = [address(context, builder, kinds[0], q, index, FLOAT) for index in arguments[1:5]]
        blocks = [address(context, builder, kinds[5], keys, index, FLOAT) for index in arguments[6:10]]
        loop = Loop(builder, [ZERO] * len(queries))
        row = builder.mul(loop.index, word(LANES))
        totals = []
        for query, block, total in zip(queries, blocks, loop.state, strict=True):
            start = offset(builder, block, row)
            prefetch(builder, builder.bitcast(offset(builder, start, ahead), BYTE.as_pointer()))
            channel = broadcast(builder, builder.load(offset(builder, query, loop.index)))
            totals.append(multiply_add(builder, load(builder, start), channel, total))
        loop.close(depth, totals)
        for index, total in zip(arguments[13:], totals, strict=True):
            store(builder, total, address(context, builder, kinds[12], scores, index, FLOAT))
        return context.get_dummy_value()

    numbers = (types.int64,) * 4
    return types.void(q, *numbers, keys, *numbers, types.int64, types.int64, scores, *numbers), generate


@intrinsic
def softmax(typing_context, scores, index, count):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        scores, index, count = arguments
        start = address(context, builder, signature.args[0], scores, index, FLOAT)

        def scores_at(place):
            is_there = lanes_below(builder, builder.sub(count, place))
            return is_there, load(builder, offset(builder, start, place))

        def larger(a, b):  # where neither is, as with NaN, the second: a row without numbers gets none
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        loop = Loop(builder, [splat(float("-inf"))], LANES)
        is_there, vector = scores_at(loop.index)
        largest = builder.select(is_there, larger(loop.state[0], vector), loop.state[0])
        loop.close(count, [largest])
        peak = broadcast(builder, fold(builder, largest, larger))
        loop = Loop(builder, [ZERO], LANES)
        is_there, vector = scores_at(loop.index)
        share = builder.select(is_there, exponential(builder, builder.fsub(vector, peak)), ZERO)
        store(builder, share, offset(builder, start, loop.index))
        total = builder.fadd(loop.state[0], share)
        loop.close(count, [total])
        return fold(builder, total, builder.fadd)

    return types.float32(scores, types.int64, types.int64), generate


@intrinsic
def dot_tile(typing_context, q, index, stride, keys, key_1, key_2, key_3, key_4, depth, scores, score_index, room):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, index, stride, keys, *key_indices, depth, scores, score_index, room = arguments
        kinds = signature.args
        first_query = address(context, builder, kinds[0], q, index, FLOAT)
        queries = [offset(builder, first_query, builder.mul(stride, word(row))) for row in range(TILE)]
        blocks = [address(context, builder, kinds[3], keys, place, FLOAT) for place in key_indices]
        loop = Loop(builder, [ZERO] * (TILE * len(blocks)))
        start = builder.mul(loop.index, word(LANES))
        channels = [load(builder, offset(builder, block, start)) for block in blocks]
        totals = []
        for row, query in enumerate(queries):
            number = broadcast(builder, builder.load(offset(builder, query, loop.index)))
            sums = loop.state[row * len(blocks) : (row + 1) * len(blocks)]
            totals += [
                multiply_add(builder, channel, number, total) for channel, total in zip(channels, sums, strict=True)
            ]
        loop.close(depth, totals)
        target = address(context, builder, kinds[9], scores, score_index, FLOAT)
        for place, total in enumerate(totals):
            row, block = divmod(place, len(blocks))
            row_target = offset(builder, target, builder.mul(room, word(row)))
            store(builder, total, offset(builder, row_target, block * LANES))
        return context.get_dummy_value()

    number = types.int64
    return types.void(q, number, number, keys, number, number, number, number, number, scores, number, number), generate


def _mix_values(vectors: int, rows: int):
    """For some queries in a row, whose shares and sums lie `room` and `sums_room` apart; each sees one row more."""

    def mix(typing_context, weights, index, room, count, values, value, ahead, depth, sums, sums_room):
        def generate(context, builder, signature, arguments):
            weights, index, room, count, values, value, ahead, depth, sums, sums_room = arguments
            kinds = signature.args
            first_share = address(context, builder, kinds[0], weights, index, FLOAT)
            shares = [offset(builder, first_share, builder.mul(room, word(row))) for row in range(rows)]
            start = address(context, builder, kinds[4], values, value, FLOAT)
            slots = []
            for row in range(rows):
                first = builder.add(sums, builder.mul(sums_room, word(row)))
                of_row = address(context, builder, kinds[0], weights, first, FLOAT)
                slots += [offset(builder, of_row, LANES * number) for number in range(CHAINS)]

            def add_values(*, all_there: bool):
                # As many tokens in a pass as there are chains, or more where that fits into registers.
                step_by = CHAINS if rows == 1 else CHAINS // vectors
                tokens = Loop(builder, [load(builder, slot) for slot in slots], step_by)
                totals = list(tokens.state)
                for step in range(step_by):
                    token = builder.add(tokens.index, word(step))
                    place = offset(builder, start, builder.mul(depth, token))
                    numbers = [load(builder, offset(builder, place, vector * LANES)) for vector in range(vectors)]
                    if rows == 1:
                        for vector in range(vectors):
                            later = offset(builder, offset(builder, place, vector * LANES), ahead)
                            prefetch(builder, builder.bitcast(later, BYTE.as_pointer()))
                    for row in range(rows):
                        share = broadcast(builder, builder.load(offset(builder, shares[row], token)))
                        seen_values = numbers
                        if not all_there:  # what lies there may be anything, and 0 times NaN is NaN
                            seen = builder.icmp_signed("<", token, builder.add(count, word(row)))
                            seen_values = [builder.select(seen, number, ZERO) for number in numbers]
                        for vector, number in enumerate(seen_values):
                            chain = row * CHAINS + step * vectors % CHAINS + vector
                            totals[chain] = multiply_add(builder, number, share, totals[chain])
                tokens.close(word(LANES), totals)
                for slot, total in zip(slots, totals, strict=True):
                    store(builder, total, slot)

            is_full = builder.icmp_signed(">=", count, word(LANES))
            with builder.if_else(is_full) as (full, partial):
                with full:
                    add_values(all_there=True)
                with partial:
                    add_values(all_there=False)
            return context.get_dummy_value()

        number = types.int64
        return types.void(weights, number, number, number, values, number, number, number, number, number), generate

    return intrinsic(mix)


mix_values_1 = _mix_values(1, 1)
mix_values_2 = _mix_values(2, 1)
mix_values_4 = _mix_values(4, 1)
mix_tile_1 = _mix_values(1, TILE)
mix_tile_2 = _mix_values(2, TILE)
mix_tile_4 = _mix_values(4, TILE)


@intrinsic
def swiglu(typing_context, x, index, out, out_index):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        x, index, out, out_index = arguments
        start = address(context, builder, signature.args[0], x, index, FLOAT)
        gate, up = load(builder, start), load(builder, offset(builder, start, LANES))
        denominator = builder.fadd(splat(1.0), exponential(builder, builder.fneg(gate)))
        target = address(context, builder, signature.args[2], out, out_index, FLOAT)
        store(builder, builder.fmul(builder.fdiv(gate, denominator), up), target)
        return context.get_dummy_value()

    return types.void(x, types.int64, out, types.int64), generate


@intrinsic
def has_many_registers(typing_context):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        features = llvm.get_host_cpu_features()
        is_arm = "aarch64" in llvm.get_process_triple() or "arm64" in llvm.get_process_triple()
        return ir.Constant(BIT, int(bool(features.get("avx512f")) or is_arm))

    return types.boolean(), generate
