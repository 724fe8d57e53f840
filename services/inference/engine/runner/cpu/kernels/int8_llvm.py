"""What `int8` declares, for Numba: imported only to compile.

It is written in LLVM's portable vector types except for one instruction: AVX-512 VNNI adds four products of bytes to
each lane at once. Elsewhere the same sums, which are exact, come from products of pairs of 16 bits.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import math

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.int8 import BLOCK, BLOCK_BYTES, GROUP, TINY
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
    Pass,
    offset,
    store,
    weight_prefetch,
    word,
)
from shared.kernels.llvm import address, broadcast, call, has_feature, multiply_add
from shared.kernels.vector_code import from_bfloat16, splat

_VECTORS = PANEL // LANES  # of a panel
_PAIRS, _WIDE = ir.VectorType(ir.IntType(16), 2 * LANES), ir.VectorType(HALF_WORD, 2 * LANES)
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
        number = ir.IntType(8 * _number_bytes())
        numbers = builder.trunc(builder.bitcast(rounded, integers), ir.VectorType(number, BLOCK))
        total = call(builder, f"llvm.vector.reduce.add.v{BLOCK}i32", HALF_WORD, builder.sext(numbers, integers))
        correction = builder.mul(total, ir.Constant(HALF_WORD, -128))
        if not _has_vnni():
            order = ir.Constant(integers, [group + place for group in range(0, BLOCK, GROUP) for place in (0, 2, 1, 3)])
            numbers = builder.shuffle_vector(numbers, ir.Constant(numbers.type, ir.Undefined), order)
        start = address(context, builder, signature.args[2], quantized, word(0), BYTE)
        start = offset(builder, start, builder.mul(block, word(_row_block_bytes())))
        for value, place in ((numbers, 0), (scale, _scale_place()), (correction, _scale_place() + 4)):
            builder.store(value, _pointer(builder, start, place, value.type), align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, quantized, types.int64), generate


def _int8_product(rows: int):
    def product(typing_context, panel, quantized, row, sums, begin):
        def generate(context, builder, signature, arguments):
            panel, quantized, row, sums, begin = arguments
            kinds = signature.args
            packed, start, depth, _, gap, share, all_rows = unpack_tuple(builder, panel)
            start = address(context, builder, kinds[0].types[0], packed, start, BYTE)
            blocks = builder.udiv(depth, word(BLOCK))
            first = address(context, builder, kinds[1], quantized, word(0), BYTE)
            row_bytes = builder.mul(blocks, word(_row_block_bytes()))
            of_rows = [
                offset(builder, first, builder.mul(builder.add(row, word(number)), row_bytes)) for number in range(rows)
            ]
            target = address(context, builder, kinds[3], sums, builder.add(begin, builder.mul(row, word(PANEL))), FLOAT)
            width = _VECTORS if rows == 1 or _has_vnni() else 1  # as there are registers
            end = offset(builder, start, builder.mul(blocks, word(BLOCK_BYTES)))
            parts = _VECTORS // width
            for part in range(parts):
                vector = part * width
                step_bytes = BLOCK_BYTES // parts
                reading = Pass(
                    start, blocks, step_bytes, end, gap, share, rows, row, all_rows, (part, parts), interleaved=True
                )
                totals = _accumulate(builder, reading, range(vector, vector + width), of_rows)
                for number, total in enumerate(totals):
                    place = number // width * PANEL + (vector + number % width) * LANES
                    store(builder, total, offset(builder, target, place))
            return context.get_dummy_value()

        return types.void(panel, quantized, types.int64, sums, types.int64), generate

    return intrinsic(product)


int8_product_1 = _int8_product(1)
int8_product_2 = _int8_product(2)
int8_product_4 = _int8_product(4)
int8_product_8 = _int8_product(8)


def _accumulate(builder, reading, vectors, of_rows):
    """The sums of all rows for some vectors of outputs."""
    request = weight_prefetch(builder, reading)
    loop = Loop(builder, [ZERO] * (len(of_rows) * len(vectors)))
    request(loop.index)
    block = offset(builder, reading.begin, builder.mul(loop.index, word(BLOCK_BYTES)))
    place = builder.mul(loop.index, word(_row_block_bytes()))
    in_block = [offset(builder, of_row, place) for of_row in of_rows]
    totals = _add_block(builder, block, vectors, in_block, loop.state)
    loop.close(reading.steps, totals)
    return totals


def _add_block(builder, weights, vectors, of_rows, totals):
    """The totals of all rows and vectors with one block more: each is fma(exact sum, product of scales, total)."""
    corrections = [broadcast(builder, _load(builder, row, _scale_place() + 4, HALF_WORD), LANES) for row in of_rows]
    sums = [correction for correction in corrections for _ in vectors]
    if _has_vnni():
        for group in range(BLOCK // GROUP):
            sums = _add_group(builder, weights, vectors, of_rows, word(group), sums)
    else:
        loop = Loop(builder, sums)  # LLVM would mix the groups, whose numbers fit in no registers together
        sums = _add_group(builder, weights, vectors, of_rows, loop.index, loop.state)
        loop.close(word(BLOCK // GROUP), sums)
    row_scales = [broadcast(builder, _load(builder, row, _scale_place(), FLOAT), LANES) for row in of_rows]
    halves = [_load(builder, weights, PANEL * BLOCK + vector * LANES * 2, HALVES) for vector in vectors]
    scales = [from_bfloat16(builder, some) for some in halves]
    factors = [builder.fmul(scale, row_scale) for row_scale in row_scales for scale in scales]
    return [
        multiply_add(builder, builder.sitofp(some, VECTOR), factor, total)
        for some, factor, total in zip(sums, factors, totals, strict=True)
    ]


def _add_group(builder, weights, vectors, of_rows, group, sums):
    """The sums of all rows and vectors with the exact products of one group more."""
    begin = offset(builder, weights, builder.mul(group, word(PANEL * GROUP)))
    some = [_load(builder, begin, vector * LANES * GROUP, INTEGERS) for vector in vectors]
    place = builder.mul(group, word(GROUP * _number_bytes()))
    numbers = [offset(builder, row, place) for row in of_rows]
    if _has_vnni():
        of_all = [broadcast(builder, _load(builder, row, 0, HALF_WORD), LANES) for row in numbers]
        pairs = [(of_vector, of_row) for of_row in of_all for of_vector in some]
        name = f"llvm.x86.avx512.vpdpbusd.{32 * LANES}"
        return [call(builder, name, INTEGERS, total, *pair) for total, pair in zip(sums, pairs, strict=True)]
    wide = [_even_and_odd(builder, of_vector) for of_vector in some]
    results = list(sums)
    for row, pointer in enumerate(numbers):
        pairs = [
            builder.bitcast(broadcast(builder, _load(builder, pointer, place, HALF_WORD), LANES), _PAIRS)
            for place in (0, 4)
        ]
        for vector, of_vector in enumerate(wide):
            place = row * len(vectors) + vector
            for of_pair in zip(of_vector, pairs, strict=True):
                results[place] = builder.add(results[place], _dot_pairs(builder, *of_pair))
    return results


def _even_and_odd(builder, weights):
    """The unsigned bytes 0 and 2 of each four, and the bytes 1 and 3, in 16 bits."""
    weights = builder.bitcast(weights, _PAIRS)
    return (
        builder.and_(weights, ir.Constant(_PAIRS, [0xFF] * 2 * LANES)),
        builder.lshr(weights, ir.Constant(_PAIRS, [8] * 2 * LANES)),
    )


def _dot_pairs(builder, some, others):
    """The sum of the two products of numbers of 16 bits in each lane: one instruction of AVX2 (VPMADDWD)."""
    products = builder.mul(builder.sext(some, _WIDE), builder.sext(others, _WIDE))
    undefined = ir.Constant(_WIDE, ir.Undefined)
    halves = [
        builder.shuffle_vector(products, undefined, ir.Constant(INTEGERS, list(range(first, 2 * LANES, 2))))
        for first in (0, 1)
    ]
    return builder.add(*halves)


@intrinsic
def has_byte_products(typing_context):
    """See `int8`."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(BIT, int(_has_vnni()))

    return types.boolean(), generate


def _has_vnni() -> bool:
    return has_feature("avx512vnni")


def _number_bytes() -> int:
    """Of a quantized activation."""
    return 1 if _has_vnni() else 2


def _scale_place() -> int:
    """Where the scale lies in a block of a row; the correction follows."""
    return BLOCK * _number_bytes()


def _row_block_bytes() -> int:
    return _scale_place() + 8


def _load(builder, base, place, kind):
    return builder.load(_pointer(builder, base, place, kind), align=4)


def _pointer(builder, base, place, kind):
    return builder.bitcast(offset(builder, base, place), kind.as_pointer())


def _float(value):
    return ir.Constant(FLOAT, value)
