"""What `intrinsics` declares of vectors, for Numba: imported only to compile.

It is written in LLVM's portable vector types, in the order of operations that `intrinsics` promises: LLVM may choose
instructions, but changes no order of floating-point operations.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.intrinsics import FLOAT16, FLOAT32, LANES, PANEL
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BIT,
    BYTE,
    FLOAT,
    NUMBERS,
    ZERO,
    Loop,
    Pass,
    for_kind,
    load,
    offset,
    store,
    weight_prefetch,
    word,
)
from shared.kernels.llvm import address, broadcast, has_feature, multiply_add
from shared.kernels.vector_code import exponential, fold, splat

_VECTORS = PANEL // LANES  # of a panel


def _panel_product(rows: int):
    def product(typing_context, panel, x, first, column, sums, begin):
        def generate(context, builder, signature, arguments):
            panel, x, first, column, sums, begin = arguments
            panel_kind, x_kind, _, _, sums_kind, _ = signature.args
            packed, weights, depth, kind, gap, share, all_rows = unpack_tuple(builder, panel)
            weights = address(context, builder, panel_kind.types[0], packed, weights, BYTE)
            values, stride = unpack_tuple(builder, x)
            place = builder.add(builder.mul(first, stride), column)
            start = address(context, builder, x_kind.types[0], values, place, FLOAT)
            activations = [offset(builder, start, builder.mul(stride, word(row))) for row in range(rows)]
            place = builder.add(begin, builder.mul(first, word(PANEL)))
            target = address(context, builder, sums_kind, sums, place, FLOAT)

            width = _VECTORS if rows <= 2 or _has_many_registers() else 1
            # LLVM moves the loads of several inputs to the front, where with many rows they fit in no registers.
            unroll = 4 if rows <= 3 else 1

            def write(number_kind):
                line = PANEL * number_kind.size
                end = offset(builder, weights, builder.mul(depth, word(line)))
                for vector in range(0, _VECTORS, width):
                    begin = offset(builder, weights, vector * LANES * number_kind.size)
                    number, parts = vector // width, _VECTORS // width
                    steps, step_bytes = builder.udiv(depth, word(unroll)), unroll * line // parts
                    reading = Pass(
                        begin,
                        steps,
                        step_bytes,
                        end,
                        gap,
                        share,
                        rows,
                        first,
                        all_rows,
                        (number, parts),
                        interleaved=True,
                    )
                    places = [
                        offset(builder, target, row * PANEL + number * LANES)
                        for row in range(rows)
                        for number in range(vector, vector + width)
                    ]
                    _accumulate(builder, reading, unroll, number_kind, activations, places)

            for_kind(builder, kind, write, among=(FLOAT32, FLOAT16))
            return context.get_dummy_value()

        return types.void(panel, x, types.int64, types.int64, sums, types.int64), generate

    return intrinsic(product)


@intrinsic
def pair_product(typing_context, panel, x, sums, begin):
    """See `intrinsics`."""

    def generate(context, builder, signature, arguments):
        panel, x, sums, begin = arguments
        packed, weights, depth, *_ = unpack_tuple(builder, panel)
        weights = address(context, builder, signature.args[0].types[0], packed, weights, BYTE)
        values, _ = unpack_tuple(builder, x)
        activations = address(context, builder, signature.args[1].types[0], values, word(0), FLOAT)
        line, unroll = PANEL * NUMBERS[FLOAT32].size, 2
        both = [weights, offset(builder, weights, builder.mul(depth, word(line)))]
        loop = Loop(builder, [ZERO] * (len(both) * _VECTORS))
        totals = list(loop.state)
        for step in range(unroll):
            k = builder.add(builder.mul(loop.index, word(unroll)), word(step))
            activation = broadcast(builder, builder.load(offset(builder, activations, k)), LANES)
            for place in range(len(totals)):
                first = offset(builder, both[place // _VECTORS], builder.mul(k, word(line)))
                weight = NUMBERS[FLOAT32].load(builder, offset(builder, first, place % _VECTORS * line // _VECTORS))
                totals[place] = multiply_add(builder, weight, activation, totals[place])
        loop.close(builder.udiv(depth, word(unroll)), totals)
        target = address(context, builder, signature.args[2], sums, begin, FLOAT)
        for place, total in enumerate(totals):
            store(builder, total, offset(builder, target, place * LANES))
        return context.get_dummy_value()

    return types.void(panel, x, sums, types.int64), generate


panel_product_1 = _panel_product(1)
panel_product_2 = _panel_product(2)
panel_product_3 = _panel_product(3)
panel_product_4 = _panel_product(4)
panel_product_5 = _panel_product(5)
panel_product_6 = _panel_product(6)
panel_product_8 = _panel_product(8)
panel_product_12 = _panel_product(12)


def _accumulate(builder, reading, unroll, of_kind, activations, places):
    """Continue the sums at some places, those of each row side by side, over a depth that is a multiple of 4."""
    width = _VECTORS // reading.part[1]
    # For one row, processors without AVX-512 (measured on Zen 3) are faster without requests.
    request = weight_prefetch(builder, reading) if reading.rows > 1 or _has_many_registers() else None
    loop = Loop(builder, [load(builder, place) for place in places])
    sums = list(loop.state)
    if request is not None:
        request(loop.index)
    for step in range(unroll):
        k = builder.add(builder.mul(loop.index, word(unroll)), word(step))
        first = offset(builder, reading.begin, builder.mul(k, word(PANEL * of_kind.size)))
        weights = [
            of_kind.load(builder, offset(builder, first, LANES * of_kind.size * number)) for number in range(width)
        ]
        for row, pointer in enumerate(activations):
            activation = broadcast(builder, builder.load(offset(builder, pointer, k)), LANES)
            for number, weight in enumerate(weights):
                place = row * width + number
                sums[place] = multiply_add(builder, weight, activation, sums[place])
    loop.close(reading.steps, sums)
    # The last pass's values; its body dominates what follows.
    for total, place in zip(sums, places, strict=True):
        store(builder, total, place)


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
        return ir.Constant(BIT, int(_has_many_registers()))

    return types.boolean(), generate


def _has_many_registers() -> bool:
    is_arm = "aarch64" in llvm.get_process_triple() or "arm64" in llvm.get_process_triple()
    return is_arm or has_feature("avx512f")
