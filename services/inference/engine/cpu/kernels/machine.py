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
from numba.core import cgutils
from numba.extending import intrinsic

from services.inference.engine.cpu.kernels.intrinsics import BFLOAT16, FLOAT16, FLOAT32, LANES, PANEL
from services.inference.engine.cpu.kernels.vectors import (
    BIT,
    BYTE,
    FLOAT,
    WORD,
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
_TOKENS = 4  # of values that are added in one pass of a loop


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
def dot_keys(typing_context, q, index, keys, first, second, third, fourth, depth, scores, score_index):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        q, index, keys, *blocks, depth, scores, score_index = arguments
        query = address(context, builder, signature.args[0], q, index, FLOAT)
        starts = [address(context, builder, signature.args[2], keys, block, FLOAT) for block in blocks]
        loop = Loop(builder, [ZERO] * len(blocks))
        channel = broadcast(builder, builder.load(offset(builder, query, loop.index)))
        row = builder.mul(loop.index, word(LANES))
        totals = [
            multiply_add(builder, load(builder, offset(builder, start, row)), channel, total)
            for start, total in zip(starts, loop.state, strict=True)
        ]
        loop.close(depth, totals)
        target = address(context, builder, signature.args[8], scores, score_index, FLOAT)
        for number, total in enumerate(totals):
            store(builder, total, offset(builder, target, number * LANES))
        return context.get_dummy_value()

    number = types.int64
    return types.void(q, number, keys, number, number, number, number, number, scores, number), generate


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


def _mix_values(vectors: int):
    chains = 4 // vectors  # sums that are added to in turn, since each addition waits for the one before

    def mix(typing_context, weights, index, count, values, base, blocks, first, stride, depth, out, out_index, scale):
        def generate(context, builder, signature, arguments):
            weights, index, count, values, base, blocks, first, stride, depth, out, out_index, scale = arguments
            kinds = signature.args
            shares = address(context, builder, kinds[0], weights, index, FLOAT)
            table = address(context, builder, kinds[5], blocks, first, WORD)
            start = address(context, builder, kinds[3], values, base, FLOAT)

            def add_block(number, sums, is_there):
                """Add one block's rows; those that are not there may hold anything."""
                block = offset(builder, start, builder.mul(builder.load(offset(builder, table, number)), stride))
                of_block = offset(builder, shares, builder.mul(number, word(LANES)))
                tokens = Loop(builder, sums, _TOKENS)
                sums = list(tokens.state)
                for step in range(_TOKENS):
                    token = builder.add(tokens.index, word(step))
                    share = broadcast(builder, builder.load(offset(builder, of_block, token)))
                    row = offset(builder, block, builder.mul(depth, token))
                    for vector in range(vectors):
                        value = load(builder, offset(builder, row, vector * LANES))
                        if is_there is not None:
                            bit = builder.icmp_signed("<", token, is_there)
                            value = builder.select(bit, value, ZERO)
                        place = step % chains * vectors + vector
                        sums[place] = multiply_add(builder, value, share, sums[place])
                tokens.close(word(LANES), sums)
                return sums

            # All blocks but the last are full; the loop runs over them, the last one is taken apart.
            last = builder.ashr(builder.sub(count, word(1)), word(LANES.bit_length() - 1))
            sums = [cgutils.alloca_once_value(builder, ZERO) for _ in range(chains * vectors)]
            with builder.if_then(builder.icmp_signed(">", last, word(0))):
                loop = Loop(builder, [ZERO] * len(sums))
                totals = add_block(loop.index, loop.state, None)
                loop.close(last, totals)
                for slot, total in zip(sums, totals, strict=True):
                    builder.store(total, slot)
            in_last = builder.sub(count, builder.mul(last, word(LANES)))
            totals = add_block(last, [builder.load(slot) for slot in sums], in_last)
            target = address(context, builder, kinds[9], out, out_index, FLOAT)
            for vector in range(vectors):
                total = totals[vector]
                for chain in range(1, chains):
                    total = builder.fadd(total, totals[chain * vectors + vector])
                total = builder.fmul(total, broadcast(builder, scale))
                store(builder, total, offset(builder, target, vector * LANES))
            return context.get_dummy_value()

        number = types.int64
        return (
            types.void(
                weights, number, number, values, number, blocks, number, number, number, out, number, types.float32
            ),
            generate,
        )

    return intrinsic(mix)


mix_values_1 = _mix_values(1)
mix_values_2 = _mix_values(2)
mix_values_4 = _mix_values(4)


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
