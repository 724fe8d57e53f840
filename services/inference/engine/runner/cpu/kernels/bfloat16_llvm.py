"""What `bfloat16` declares, for Numba: imported only to compile.

It is written in LLVM's portable vector types except for one instruction, VDPBF16PS, which adds two products to each
lane: first that of the upper halves, then that of the lower ones, each rounded by itself.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from services.inference.engine.runner.cpu.kernels.bfloat16 import DEPTH, GROUP, SMALLEST_BITS
from services.inference.engine.runner.cpu.kernels.intrinsics import LANES, PANEL
from services.inference.engine.runner.cpu.kernels.vectors_llvm import (
    BIT,
    BYTE,
    FLOAT,
    HALF_WORD,
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

_BLOCK_BYTES = DEPTH * LANES * 2  # of the weights of half the outputs for a block
_INPUTS = 4  # that are added at once, two of them even
_GROUPS = DEPTH // _INPUTS
_PAIRED = [_INPUTS * group + place for group in range(_GROUPS) for place in (2, 0, 3, 1)]


@intrinsic
def round_block(typing_context, x, index, rounded, place, row, in_order):
    """See `bfloat16`."""

    def generate(context, builder, signature, arguments):
        x, index, rounded, place, row, in_order = arguments
        integers, shorts = ir.VectorType(HALF_WORD, DEPTH), ir.VectorType(ir.IntType(16), DEPTH)
        bits = builder.load(address(context, builder, signature.args[0], x, index, integers), align=4)
        target = address(context, builder, signature.args[2], rounded, place, BYTE)
        numbers = _round(builder, bits, lambda value: ir.Constant(integers, [value] * DEPTH))
        natural = builder.trunc(numbers, shorts)
        with builder.if_else(in_order) as (then, otherwise):
            with then:
                line = offset(builder, target, builder.mul(row, word(2 * DEPTH)))
                builder.store(natural, builder.bitcast(line, shorts.as_pointer()), align=4)
            with otherwise:
                if _has_pair_products():
                    values = builder.shuffle_vector(natural, natural, ir.Constant(integers, _PAIRED))
                else:
                    values = builder.shl(numbers, ir.Constant(integers, [16] * DEPTH))
                parts = builder.bitcast(values, ir.VectorType(ir.IntType(8 * _group_bytes()), _GROUPS))
                first = offset(builder, target, builder.mul(row, word(_group_bytes())))
                for group in range(_GROUPS):
                    part = builder.extract_element(parts, ir.Constant(HALF_WORD, group))
                    pointer = offset(builder, first, group * GROUP * _group_bytes())
                    builder.store(part, builder.bitcast(pointer, part.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, rounded, types.int64, types.int64, types.boolean), generate


def _round(builder, bits, splat):
    """To the upper halves of the nearest numbers that have no lower halves; in a tie, to the even one."""
    magnitudes = builder.and_(bits, splat(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(bits, splat(16)), splat(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, splat(0x7FFF))), splat(16))
    quiet = builder.or_(builder.lshr(bits, splat(16)), splat(0x40))  # a NaN, which carries may turn into a number
    is_nan = builder.icmp_unsigned(">", magnitudes, splat(0x7F800000))
    is_small = builder.icmp_unsigned("<", magnitudes, splat(SMALLEST_BITS))
    return builder.select(is_small, splat(0), builder.select(is_nan, quiet, rounded))


def _bfloat16_product(rows: int):
    def product(typing_context, panel, rounded, row, sums, sums_begin):
        def generate(context, builder, signature, arguments):
            panel, rounded, row, sums, sums_begin = arguments
            kinds = signature.args
            packed, begin, depth, _, gap, share, all_rows = unpack_tuple(builder, panel)
            weights = address(context, builder, kinds[0].types[0], packed, begin, BYTE)
            blocks = builder.udiv(depth, word(DEPTH))
            end = offset(builder, weights, builder.mul(blocks, word(PANEL // LANES * _BLOCK_BYTES)))
            group, in_group = builder.udiv(row, word(GROUP)), builder.urem(row, word(GROUP))
            first = builder.mul(group, builder.mul(blocks, word(GROUP * _GROUPS * _group_bytes())))
            first = builder.add(first, builder.mul(in_group, word(_group_bytes())))
            of_rows = offset(builder, address(context, builder, kinds[1], rounded, word(0), BYTE), first)
            place = builder.add(sums_begin, builder.mul(row, word(PANEL)))
            target = address(context, builder, kinds[3], sums, place, FLOAT)
            requests, halves = _requests(rows), PANEL // LANES
            steps, step_bytes = builder.mul(blocks, word(requests)), _BLOCK_BYTES // requests
            for half in range(halves):
                begin = offset(builder, weights, builder.mul(blocks, word(half * _BLOCK_BYTES)))
                part = half, halves
                reading = Pass(begin, steps, step_bytes, end, gap, share, rows, row, all_rows, part, interleaved=False)
                for number, total in enumerate(_accumulate(builder, reading, of_rows, blocks)):
                    store(builder, total, offset(builder, target, number * PANEL + half * LANES))
            return context.get_dummy_value()

        return types.void(panel, rounded, types.int64, sums, types.int64), generate

    return intrinsic(product)


bfloat16_product_1 = _bfloat16_product(1)
bfloat16_product_2 = _bfloat16_product(2)
bfloat16_product_4 = _bfloat16_product(4)
bfloat16_product_8 = _bfloat16_product(8)


def _accumulate(builder, reading, of_rows, blocks):
    """The sums of all rows for half the outputs of the panel."""
    request = weight_prefetch(builder, reading)
    loop = Loop(builder, [ZERO] * reading.rows)
    inputs = offset(builder, of_rows, builder.mul(loop.index, word(GROUP * _GROUPS * _group_bytes())))
    totals = _add_block(builder, reading, loop.index, inputs, request)
    sums = [builder.fadd(*pair) for pair in zip(loop.state, totals, strict=True)]
    loop.close(blocks, sums)
    return sums


def _add_block(builder, reading, block, inputs, request):
    """The sums of a block for each row."""
    rows, unroll = reading.rows, 2  # with more, LLVM loads more ahead than there are registers for
    begin = offset(builder, reading.begin, builder.mul(block, word(_BLOCK_BYTES)))
    if _requests(rows) == 1:
        request(block)
    loop = Loop(builder, [ZERO] * (2 * rows), unroll)
    sums = list(loop.state)
    for step in range(unroll):
        group = builder.add(loop.index, word(step))
        of_group = offset(builder, inputs, builder.mul(group, word(GROUP * _group_bytes())))
        if _requests(rows) == _GROUPS:
            request(builder.add(builder.mul(block, word(_GROUPS)), group))
        weights = _load_weights(builder, offset(builder, begin, builder.mul(group, word(_BLOCK_BYTES // _GROUPS))))
        for row in range(rows):
            numbers = offset(builder, of_group, row * _group_bytes())
            sums[2 * row : 2 * row + 2] = _add_inputs(builder, weights, numbers, *sums[2 * row : 2 * row + 2])
    loop.close(word(_GROUPS), sums)
    return [builder.fadd(*sums[place : place + 2]) for place in range(0, len(sums), 2)]


def _requests(rows: int) -> int:
    """How often in a block weights are requested: with more rows, sums would leave the registers for a branch."""
    return _GROUPS if rows <= 2 else 1


def _load_weights(builder, pointer):
    """Those of _INPUTS inputs and LANES outputs, as `_add_inputs` takes them."""
    first, second = (
        builder.load(builder.bitcast(offset(builder, pointer, place), INTEGERS.as_pointer()), align=4)
        for place in (0, 4 * LANES)
    )
    upper, lower, half = (ir.Constant(INTEGERS, [bits] * LANES) for bits in (0xFFFF0000, 0xFFFF, 16))
    if _has_pair_products():
        even = builder.or_(builder.shl(first, half), builder.and_(second, lower))
        return even, builder.or_(builder.and_(first, upper), builder.lshr(second, half))
    of_pairs = [(builder.shl(pair, half), builder.and_(pair, upper)) for pair in (first, second)]
    return [builder.bitcast(weights, VECTOR) for of_pair in of_pairs for weights in of_pair]


def _add_inputs(builder, weights, pointer, even, odd):
    """The sums with the products of _INPUTS inputs of a row, from an address on."""
    if _has_pair_products():
        words = [broadcast(builder, _load(builder, pointer, 4 * place, HALF_WORD), LANES) for place in (0, 1)]
        return [
            call(builder, f"llvm.x86.avx512bf16.dpbf16ps.{32 * LANES}", VECTOR, total, some, pair)
            for total, some, pair in zip((even, odd), weights, words, strict=True)
        ]
    numbers = [broadcast(builder, _load(builder, pointer, 4 * place, FLOAT), LANES) for place in range(_INPUTS)]
    for place in (0, 2):
        even = multiply_add(builder, weights[place], numbers[place], even)
        odd = multiply_add(builder, weights[place + 1], numbers[place + 1], odd)
    return [even, odd]


def _load(builder, base, place, kind):
    return builder.load(builder.bitcast(offset(builder, base, place), kind.as_pointer()), align=4)


@intrinsic
def has_pair_products(typing_context):
    """See `bfloat16`."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(BIT, int(_has_pair_products()))

    return types.boolean(), generate


def _has_pair_products() -> bool:
    return has_feature("avx512bf16")


def _group_bytes() -> int:
    """Of _INPUTS rounded inputs of a row."""
    return _INPUTS * (2 if _has_pair_products() else 4)
