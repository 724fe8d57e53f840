"""LLVM code for vectors of LANES numbers in float32, for several sets of kernels; imported only to compile."""

# Numba's extension interface is untyped.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math
import struct

from llvmlite import ir

from shared.kernels.intrinsics import LANES
from shared.kernels.llvm import broadcast, multiply_add

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(32)
FLOATS = ir.VectorType(_FLOAT, LANES)
INTEGERS = ir.VectorType(ir.IntType(32), LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)
_NAN = 0x7FC0  # in bfloat16


def integers(value: int):
    """A constant vector of whole numbers."""
    return ir.Constant(INTEGERS, [ir.Constant(_INDEX, value)] * LANES)


def splat(value: float, lanes: int = LANES):
    """A constant vector."""
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return ir.Constant(ir.VectorType(_FLOAT, lanes), [ir.Constant(_FLOAT, rounded)] * lanes)


def lanes_below(builder, count):
    """Bits of the lanes whose number is below `count` (of 64 bits)."""
    limit = broadcast(builder, builder.trunc(count, _INDEX), LANES)
    numbers = ir.Constant(INTEGERS, [ir.Constant(_INDEX, lane) for lane in range(LANES)])
    return builder.icmp_signed("<", numbers, limit)


def fold(builder, vector, combine):
    """One number of all lanes: the upper half is combined with the lower, until one lane is left."""
    width = LANES
    while width > 1:
        width //= 2
        half = ir.VectorType(_INDEX, width)
        lower = ir.Constant(half, [ir.Constant(_INDEX, lane) for lane in range(width)])
        upper = ir.Constant(half, [ir.Constant(_INDEX, lane + width) for lane in range(width)])
        vector = combine(
            builder.shuffle_vector(vector, vector, lower),
            builder.shuffle_vector(vector, vector, upper),
        )
    return builder.extract_element(vector, ir.Constant(_INDEX, 0))


def exponential(builder, x):
    """Exp of each lane to about one unit in the last place; below -87 it is 0, above 88 it stays exp(88).

    Cody and Waite's reduction by multiples of ln 2, and the polynomial of Cephes' `expf` (Moshier 1992).
    """
    low, high = splat(-87.0), splat(88.0)
    is_zero = builder.fcmp_ordered("<", x, low)
    is_number = builder.fcmp_ordered("ord", x, x)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, builder.select(is_zero, low, x))
    # Adding 1.5 * 2**23 rounds to a whole number, which then stands in the low bits.
    magic = splat(1.5 * (1 << 23))
    shifted = multiply_add(builder, x, splat(1 / math.log(2)), magic)
    whole = builder.fsub(shifted, magic)
    rest = multiply_add(builder, whole, splat(-0.693359375), x)
    rest = multiply_add(builder, whole, splat(2.12194440e-4), rest)
    coefficients = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
    power = splat(1.9875691500e-4)
    for coefficient in coefficients:
        power = multiply_add(builder, power, rest, splat(coefficient))
    result = multiply_add(builder, power, builder.fmul(rest, rest), builder.fadd(rest, splat(1.0)))
    exponent = builder.shl(builder.bitcast(shifted, INTEGERS), integers(23))
    result = builder.bitcast(builder.add(builder.bitcast(result, INTEGERS), exponent), FLOATS)
    return builder.select(is_number, builder.select(is_zero, splat(0.0), result), x)


def from_bfloat16(builder, halves):
    """The numbers whose upper halves a vector holds."""
    return builder.bitcast(builder.shl(builder.zext(halves, INTEGERS), integers(16)), FLOATS)


def to_bfloat16(builder, vector):
    """The upper halves of the nearest numbers that have no others, of two the even one; NaN stays NaN."""
    bits = builder.bitcast(vector, INTEGERS)
    is_odd = builder.and_(builder.lshr(bits, integers(16)), integers(1))
    rounded = builder.lshr(builder.add(bits, builder.add(is_odd, integers(0x7FFF))), integers(16))
    is_number = builder.fcmp_ordered("ord", vector, vector)
    return builder.trunc(builder.select(is_number, rounded, integers(_NAN)), HALVES)
