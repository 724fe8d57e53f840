"""Products of blocks of 8-bit numbers, for Numba: imported only to compile.

It is written in LLVM's portable vector types but for one instruction: AVX-512 VNNI adds four products of bytes to each
lane at once. Elsewhere the same sums, which are exact, come from products of 16-bit pairs.
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from services.inference.engine.cpu.kernels.int8 import BLOCK, GROUP, LANES

_BYTE, _HALF, _INT, _WORD, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS, _INTS, _HALVES = (ir.VectorType(kind, LANES) for kind in (_FLOAT, _INT, _HALF))
_ROUNDING = 1.5 * 2**23  # added to a small float, it leaves the nearest whole number in the low bits
_TINY = 1e-30  # a block of nothing larger is taken for zeros: 127 over it might be infinite


@intrinsic
def quantize_block(typing_context, x, at, count, quantized, scales, corrections, block):
    """Quantise `x[at : at + count]`, a block or its beginning, into block number `block` of the three arrays.

    The scale is the largest magnitude over 127. A block with a NaN or an infinity gets the scale NaN, which makes all
    outputs of its row NaN. The correction undoes the 128 that is added to each weight.
    """

    def generate(context, builder, signature, arguments):
        arguments = _with_addresses(context, builder, signature, arguments)
        x, at, count, quantized, scales, corrections, block = arguments
        floats, ints = ir.VectorType(_FLOAT, BLOCK), ir.VectorType(_INT, BLOCK)
        lanes = ir.Constant(ints, list(range(BLOCK)))
        inside = builder.icmp_unsigned("<", lanes, _splat(builder, builder.trunc(count, _INT), BLOCK))
        values = _load_some(builder, _at(builder, x, builder.mul(at, _WORD(4)), floats), inside, floats)
        magnitudes = builder.and_(builder.bitcast(values, ints), ir.Constant(ints, [0x7FFFFFFF] * BLOCK))
        top_bits = _call(builder, f"llvm.vector.reduce.umax.v{BLOCK}i32", _INT, magnitudes)
        top = builder.bitcast(top_bits, _FLOAT)
        is_finite = builder.icmp_unsigned("<", top_bits, _INT(0x7F800000))
        is_zero = builder.fcmp_ordered("<", top, _FLOAT(_TINY))
        factor = builder.select(is_zero, _FLOAT(0.0), builder.fdiv(_FLOAT(127.0), top))
        scale = builder.select(is_zero, _FLOAT(0.0), builder.fdiv(top, _FLOAT(127.0)))
        scale = builder.select(is_finite, scale, _FLOAT(math.nan))
        rounded = builder.fadd(
            builder.fmul(values, _splat(builder, factor, BLOCK)), ir.Constant(floats, [_ROUNDING] * BLOCK)
        )
        numbers = builder.trunc(builder.bitcast(rounded, ints), ir.VectorType(_BYTE, BLOCK))
        total = _call(builder, f"llvm.vector.reduce.add.v{BLOCK}i32", _INT, builder.sext(numbers, ints))
        builder.store(numbers, _at(builder, quantized, builder.mul(block, _WORD(BLOCK)), numbers.type), align=1)
        builder.store(scale, _at(builder, scales, builder.mul(block, _WORD(4)), _FLOAT))
        correction = builder.mul(total, _INT(-128))
        builder.store(correction, _at(builder, corrections, builder.mul(block, _WORD(4)), _INT))
        return context.get_dummy_value()

    return types.void(x, at, count, quantized, scales, corrections, block), generate


def _tile(rows: int, panels: int):
    """An operation that computes the outputs of `rows` rows for `panels` panels.

    Every output is one sum over the blocks in their order, whatever the tile: total = fma(sum, scale, total), where
    sum is a block's exact sum of products and scale the product of its two scales.
    """

    @intrinsic
    def tile(
        typing_context, weights, weight_scales, panel, quantized, scales, corrections, row, blocks, out, at, pitch
    ):
        signature = types.void(
            weights, weight_scales, panel, quantized, scales, corrections, row, blocks, out, at, pitch
        )

        def generate(context, builder, signature, arguments):
            arguments = _with_addresses(context, builder, signature, arguments)
            weights, weight_scales, panel, quantized, scales, corrections, row, blocks, out, at, pitch = arguments
            panel_starts = [builder.mul(builder.add(panel, _WORD(index)), blocks) for index in range(panels)]
            row_starts = [builder.mul(builder.add(row, _WORD(index)), blocks) for index in range(rows)]

            def add_block(block, totals):
                of_panels = [builder.add(start, block) for start in panel_starts]
                of_rows = [builder.add(start, block) for start in row_starts]
                sums = _block_sums(builder, weights, of_panels, quantized, corrections, of_rows)
                row_scales = [
                    _splat(builder, builder.load(_at(builder, scales, builder.mul(place, _WORD(4)), _FLOAT)))
                    for place in of_rows
                ]
                for p, place in enumerate(of_panels):
                    address = _at(builder, weight_scales, builder.mul(place, _WORD(2 * LANES)), _HALVES)
                    panel_scales = _from_bfloat16(builder, builder.load(address, align=2))
                    for r, row_scale in enumerate(row_scales):
                        scale = builder.fmul(panel_scales, row_scale)
                        product = builder.sitofp(sums[r][p], _FLOATS)
                        totals[r][p] = _call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, product, scale, totals[r][p])
                return totals

            for r, row_totals in enumerate(_loop(builder, blocks, rows, panels, add_block)):
                for p, total in enumerate(row_totals):
                    place = builder.add(builder.add(at, builder.mul(pitch, _WORD(r))), _WORD(p * LANES))
                    builder.store(total, _at(builder, out, builder.mul(place, _WORD(4)), _FLOATS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return tile


def _block_sums(builder, weights, of_panels, quantized, corrections, of_rows):
    """For each row and panel the exact sums over a block, a lane for each output."""
    sums = []
    for place in of_rows:
        correction = builder.load(_at(builder, corrections, builder.mul(place, _WORD(4)), _INT))
        sums.append([_splat(builder, correction)] * len(of_panels))
    for offset in range(0, BLOCK, GROUP):
        some_weights = []
        for place in of_panels:
            start = builder.add(builder.mul(place, _WORD(BLOCK * LANES)), _WORD(offset * LANES))
            some_weights.append(builder.load(_at(builder, weights, start, _INTS), align=1))
        for r, place in enumerate(of_rows):
            start = builder.add(builder.mul(place, _WORD(BLOCK)), _WORD(offset))
            numbers = _splat(builder, builder.load(_at(builder, quantized, start, _INT), align=1))
            sums[r] = [_add_products(builder, *both, numbers) for both in zip(sums[r], some_weights, strict=True)]
    return sums


def _add_products(builder, sums, weights, numbers):
    """Add to each lane the products of its four unsigned bytes with four signed ones, exactly."""
    if _has_vnni():
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", _INTS, sums, weights, numbers)
    pairs, wide = ir.VectorType(_HALF, 2 * LANES), ir.VectorType(_INT, 2 * LANES)
    weights, numbers = builder.bitcast(weights, pairs), builder.bitcast(numbers, pairs)
    eight = ir.Constant(pairs, [8] * 2 * LANES)
    low = builder.and_(weights, ir.Constant(pairs, [255] * 2 * LANES)), builder.ashr(builder.shl(numbers, eight), eight)
    high = builder.lshr(weights, eight), builder.ashr(numbers, eight)
    for some, others in (low, high):
        products = builder.mul(builder.sext(some, wide), builder.sext(others, wide))
        for first in (0, 1):
            lanes = ir.Constant(_INTS, list(range(first, 2 * LANES, 2)))
            sums = builder.add(sums, builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), lanes))
    return sums


def _has_vnni() -> bool:
    from numba.core.registry import cpu_target

    return "+avx512vnni" in cpu_target.target_context.codegen()._tm_features.split(",")


def _loop(builder, count, rows, panels, add):
    """Totals of `add(index, totals)` from zero for each index below `count`, which is one at least."""
    entry = builder.block
    loop, end = builder.append_basic_block("blocks"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(_WORD)
    index.add_incoming(_WORD(0), entry)
    totals = [[builder.phi(_FLOATS) for _ in range(panels)] for _ in range(rows)]
    results = add(index, [list(row) for row in totals])
    following = builder.add(index, _WORD(1))
    index.add_incoming(following, builder.block)
    for row, row_results in zip(totals, results, strict=True):
        for phi, result in zip(row, row_results, strict=True):
            phi.add_incoming(ir.Constant(_FLOATS, [0.0] * LANES), entry)
            phi.add_incoming(result, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
    builder.position_at_end(end)
    return results


def _with_addresses(context, builder, signature, arguments):
    """The arguments, with the address of its first byte in the place of each array."""
    for kind, value in zip(signature.args, arguments, strict=True):
        if isinstance(kind, types.Array):
            yield builder.bitcast(context.make_array(kind)(context, builder, value).data, _BYTE.as_pointer())
        else:
            yield value


def _at(builder, base, offset, kind):
    return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _splat(builder, value, lanes=LANES):
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_INT, lanes), None)
    return builder.shuffle_vector(builder.insert_element(undefined, value, _INT(0)), undefined, zeros)


def _load_some(builder, pointer, inside, kind):
    """A vector of which the lanes outside are zero and are not read."""
    name = f"llvm.masked.load.v{kind.count}f32.p0"
    return _call(builder, name, kind, pointer, _INT(4), inside, ir.Constant(kind, [0.0] * kind.count))


def _from_bfloat16(builder, halves):
    bits = builder.shl(builder.zext(halves, _INTS), ir.Constant(_INTS, [16] * LANES))
    return builder.bitcast(bits, _FLOATS)


tile_1x1, tile_1x4, tile_2x1, tile_4x1, tile_8x1 = _tile(1, 1), _tile(1, 4), _tile(2, 1), _tile(4, 1), _tile(8, 1)
