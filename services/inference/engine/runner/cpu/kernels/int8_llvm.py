"""What `int8` declares, for Numba: imported only to compile.

It is written in LLVM's portable vector types except for one instruction: AVX-512 VNNI adds four products of bytes to
each lane at once. Elsewhere the same sums, which are exact, come from products of 16-bit pairs.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, BLOCK_BYTES, GROUP, ROW_BLOCK_BYTES, TINY
from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, PANEL
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BIT,
    BYTE,
    FLOAT,
    HALF_WORD,
    HALVES,
    INTEGERS,
    VECTOR,
    ZERO,
    Loop,
    offset,
    store_or_add,
    word,
)
from shared.kernels.llvm import address, broadcast, call, has_feature, multiply_add
from shared.kernels.vector_code import from_bfloat16, splat

_VECTORS = PANEL // LANES  # of a panel
_ROUNDING = 1.5 * 2**23  # added to a small float, it leaves the nearest whole number in the low bits


@intrinsic
def quantize_block(typing_context, x, index, quantized, block):
    """See `int8`."""

    def generate(context, builder, signature, arguments):
        x, index, quantized, block = arguments
        floats, integers = ir.VectorType(FLOAT, BLOCK), ir.VectorType(HALF_WORD, BLOCK)
        values = builder.load(address(context, builder, signature.args[0], x, index, floats), align=4)
        magnitudes = builder.and_(builder.bitcast(values, integers), ir.Constant(integers, [0x7FFFFFFF] * BLOCK))
        top_bits = call(builder, f"llvm.vector.reduce.umax.v{BLOCK}i32", HALF_WORD, magnitudes)
        top = builder.bitcast(top_bits, FLOAT)
        is_finite = builder.icmp_unsigned("<", top_bits, ir.Constant(HALF_WORD, 0x7F800000))
        is_zero = builder.fcmp_ordered("<", top, _float(TINY))
        factor = builder.select(is_zero, _float(0.0), builder.fdiv(_float(127.0), top))
        scale = builder.select(is_zero, _float(0.0), builder.fdiv(top, _float(127.0)))
        scale = builder.select(is_finite, scale, _float(math.nan))
        products = builder.fmul(values, broadcast(builder, factor, BLOCK))
        rounded = builder.fadd(products, splat(_ROUNDING, BLOCK))
        numbers = builder.trunc(builder.bitcast(rounded, integers), ir.VectorType(BYTE, BLOCK))
        total = call(builder, f"llvm.vector.reduce.add.v{BLOCK}i32", HALF_WORD, builder.sext(numbers, integers))
        correction = builder.mul(total, ir.Constant(HALF_WORD, -128))
        start = address(context, builder, signature.args[2], quantized, word(0), BYTE)
        start = offset(builder, start, builder.mul(block, word(ROW_BLOCK_BYTES)))
        for value, place in ((numbers, 0), (scale, BLOCK), (correction, BLOCK + 4)):
            builder.store(value, _pointer(builder, start, place, value.type), align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, quantized, types.int64), generate


def _int8_product(rows: int):
    def product(typing_context, panel, quantized, row, out, column, add):
        def generate(context, builder, signature, arguments):
            panel, quantized, row, out, column, add = arguments
            kinds = signature.args
            packed, begin, depth, *_ = unpack_tuple(builder, panel)
            start = address(context, builder, kinds[0].types[0], packed, begin, BYTE)
            blocks = builder.udiv(depth, word(BLOCK))
            first = address(context, builder, kinds[1], quantized, word(0), BYTE)
            row_bytes = builder.mul(blocks, word(ROW_BLOCK_BYTES))
            of_rows = [
                offset(builder, first, builder.mul(builder.add(row, word(number)), row_bytes)) for number in range(rows)
            ]
            loop = Loop(builder, [ZERO] * (rows * _VECTORS))
            block = offset(builder, start, builder.mul(loop.index, word(BLOCK_BYTES)))
            place = builder.mul(loop.index, word(ROW_BLOCK_BYTES))
            totals = _add_block(builder, block, [offset(builder, of_row, place) for of_row in of_rows], loop.state)
            loop.close(blocks, totals)
            values, stride = unpack_tuple(builder, out)
            place = builder.add(builder.mul(row, stride), column)
            target = address(context, builder, kinds[3].types[0], values, place, FLOAT)
            for number, total in enumerate(totals):
                place = builder.add(builder.mul(stride, word(number // _VECTORS)), word(number % _VECTORS * LANES))
                store_or_add(builder, total, offset(builder, target, place), add)
            return context.get_dummy_value()

        return types.void(panel, quantized, types.int64, out, types.int64, types.boolean), generate

    return intrinsic(product)


int8_product_1 = _int8_product(1)
int8_product_2 = _int8_product(2)
int8_product_4 = _int8_product(4)
int8_product_8 = _int8_product(8)


def _add_block(builder, weights, of_rows, totals):
    """The totals of all rows and vectors with one block more: each is fma(exact sum, product of scales, total)."""
    sums = [[broadcast(builder, _load(builder, row, BLOCK + 4, HALF_WORD), LANES)] * _VECTORS for row in of_rows]
    for group in range(BLOCK // GROUP):
        begin = group * PANEL * GROUP
        some = [_load(builder, weights, begin + vector * LANES * GROUP, INTEGERS) for vector in range(_VECTORS)]
        for number, row in enumerate(of_rows):
            four = broadcast(builder, _load(builder, row, group * GROUP, HALF_WORD), LANES)
            sums[number] = [_add_products(builder, *pair, four) for pair in zip(sums[number], some, strict=True)]
    results: list[Any] = []
    row_scales = [broadcast(builder, _load(builder, row, BLOCK, FLOAT), LANES) for row in of_rows]
    halves = [_load(builder, weights, PANEL * BLOCK + vector * LANES * 2, HALVES) for vector in range(_VECTORS)]
    scales = [from_bfloat16(builder, some) for some in halves]
    for of_row, row_scale in zip(sums, row_scales, strict=True):
        for total, scale in zip(of_row, scales, strict=True):
            factor = builder.fmul(scale, row_scale)
            results.append(multiply_add(builder, builder.sitofp(total, VECTOR), factor, totals[len(results)]))
    return results


def _add_products(builder, sums, weights, numbers):
    """Add to each lane the products of its four unsigned bytes with four signed ones, exactly."""
    if _has_vnni():
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", INTEGERS, sums, weights, numbers)
    pairs, wide = ir.VectorType(ir.IntType(16), 2 * LANES), ir.VectorType(HALF_WORD, 2 * LANES)
    weights, numbers = builder.bitcast(weights, pairs), builder.bitcast(numbers, pairs)
    eight = ir.Constant(pairs, [8] * 2 * LANES)
    low = builder.and_(weights, ir.Constant(pairs, [255] * 2 * LANES)), builder.ashr(builder.shl(numbers, eight), eight)
    high = builder.lshr(weights, eight), builder.ashr(numbers, eight)
    for some, others in (low, high):
        products = builder.mul(builder.sext(some, wide), builder.sext(others, wide))
        for first in (0, 1):
            lanes = ir.Constant(INTEGERS, list(range(first, 2 * LANES, 2)))
            sums = builder.add(sums, builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), lanes))
    return sums


@intrinsic
def has_byte_products(typing_context):
    """See `int8`."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(BIT, int(_has_vnni()))

    return types.boolean(), generate


def _has_vnni() -> bool:
    return has_feature("avx512vnni")


def _load(builder, base, place, kind):
    return builder.load(_pointer(builder, base, place, kind), align=4)


def _pointer(builder, base, place, kind):
    return builder.bitcast(offset(builder, base, place), kind.as_pointer())


def _float(value):
    return ir.Constant(FLOAT, value)
