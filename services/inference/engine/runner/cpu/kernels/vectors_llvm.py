"""LLVM's portable vector code that the engine's intrinsics are made of; imported only to compile."""

# Numba's extension interface is untyped.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from services.inference.engine.runner.cpu.kernels.intrinsics import BFLOAT16, CACHE_LINE, FLOAT16, FLOAT32, LANES
from shared.kernels.llvm import SECOND_CACHE, has_feature, prefetch
from shared.kernels.vector_code import from_bfloat16, integers, splat, to_bfloat16

BYTE, HALF_WORD, WORD, BIT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(1)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(HALF_WORD, LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)
ZERO = ir.Constant(VECTOR, None)
_LINE_BYTES = 8 * CACHE_LINE
_NAN = 0x7FC0_0000  # its upper half is NaN in bfloat16, and as a number of 16 bits with five of the exponent, too
_BEYOND_FLOAT16 = 0x477F_F000  # 65,520


def offset(builder, pointer, index):
    """The address `index` elements behind another."""
    return builder.gep(pointer, [word(index) if isinstance(index, int) else index])


def word(value):
    """A constant of 64 bits."""
    return ir.Constant(WORD, value)


def load(builder, pointer):
    """The vector at the address of its first number, which need not be aligned."""
    return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


def store(builder, vector, pointer):
    """Write a vector from the address of its first number on."""
    builder.store(vector, builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


class Pass(NamedTuple):
    """One reading of weights, or of a part of them, for some of the rows that they are multiplied with.

    Addresses and numbers are LLVM's, unless they are said to be Python's.

    Attributes:
        begin: The address of the weights.
        steps: How many steps it takes.
        step_bytes: Of weights in a step, a Python number.
        end: The address where the panel ends.
        gap: Bytes from there to the panel that its thread probably takes next.
        share: Bytes of that panel that are requested for each row, where several passes request them.
        rows: How many, a Python number.
        first: The first of them.
        all_rows: How many rows the panel is multiplied with.
        part: Which part of the panel is read, and of how many, Python numbers.
        interleaved: Whether the parts take turns in each step's weights, rather than lie one after the other.
    """

    begin: Any
    steps: Any
    step_bytes: int
    end: Any
    gap: Any
    share: Any
    rows: int
    first: Any
    all_rows: Any
    part: tuple[int, int]
    interleaved: bool


def weight_prefetch(builder, reading: Pass):
    """A function that requests weights ahead, given the number of a step of a pass; to be called in its loop.

    The only pass over a panel waits for its weights, and requests those a little further: the more rows, the further,
    since products that wait for no weights hide that others come late. Behind the panel they are those of another
    thread: the panel to come begins behind the gap. The first of several passes finds the panel in the cache, and
    leaves it there for the others: each requests its part of the panel to come, so that memory is busy all the time.
    """
    following, passes = _following(builder, reading), builder.udiv(reading.all_rows, word(reading.rows))
    if reading.interleaved and reading.part[1] > 1:  # a pass over one of several such parts is never the only one
        return _spread(builder, reading, following, passes)
    is_only = builder.icmp_signed("<=", reading.all_rows, word(reading.rows))
    near = offset(builder, reading.begin, min(max(2 * reading.rows, 4), 16) << 10)
    start, passes = builder.select(is_only, near, following), builder.select(is_only, word(1), passes)
    last = builder.select(is_only, reading.end, builder.inttoptr(word(-1), reading.end.type))

    def beyond(ahead):
        gap = builder.select(builder.icmp_unsigned(">=", ahead, last), reading.gap, word(0))
        return offset(builder, ahead, gap)

    return _spread(builder, reading, start, passes, beyond)


def _following(builder, reading: Pass):
    """The address of the part of the panel to come that a pass requests, where there are several."""
    number, parts = reading.part
    of_parts = builder.udiv(builder.mul(reading.share, word(reading.rows * number)), word(parts))
    place = builder.add(builder.mul(reading.share, reading.first), of_parts)
    return offset(builder, offset(builder, reading.end, reading.gap), place)


def _spread(builder, reading: Pass, start, passes, beyond=lambda ahead: ahead):
    """Requests from an address on, for every step where one pass makes them all, and at intervals for several.

    The intervals are a power of two: the processor foresees a branch that is taken at even ones.
    """
    shift = builder.sub(word(63), builder.ctlz(builder.or_(passes, word(1)), ir.Constant(BIT, 1)))
    between = builder.sub(builder.shl(word(1), shift), word(1))

    def request(step):
        with builder.if_then(builder.icmp_unsigned("==", builder.and_(step, between), word(0))):
            ahead = offset(builder, start, builder.mul(builder.lshr(step, shift), word(reading.step_bytes)))
            ahead = beyond(ahead)
            for line in range(0, reading.step_bytes, _LINE_BYTES):
                prefetch(builder, offset(builder, ahead, line), SECOND_CACHE)

    return request


def _halves(builder, pointer):
    """A vector of numbers of 16 bits from an address on, which need not be aligned."""
    return builder.load(builder.bitcast(pointer, HALVES.as_pointer()), align=2)


def _from_float16(builder, halves):
    """A vector of numbers of 16 bits in 32; what is not finite is NaN where there is no instruction for it."""
    if _has_half_conversion():
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    # Exponent and fraction moved to their places are the number over 2**112, for subnormal ones too.
    wide = builder.zext(halves, INTEGERS)
    sign = builder.shl(builder.and_(wide, integers(0x8000)), integers(16))
    magnitude = builder.and_(wide, integers(0x7FFF))
    scaled = builder.fmul(builder.bitcast(builder.shl(magnitude, integers(13)), VECTOR), splat(2.0**112))
    is_finite = builder.icmp_unsigned("<", magnitude, integers(0x7C00))
    number = builder.select(is_finite, builder.bitcast(scaled, INTEGERS), integers(_NAN))
    return builder.bitcast(builder.or_(number, sign), VECTOR)


def _to_float16(builder, vector):
    """The nearest numbers of 16 bits, of two the even one; NaN for what they cannot hold, from 65,520 on.

    In whole numbers (after F. Giesen, "float->half variants", 2016), since not every processor has an instruction.
    """
    bits = builder.bitcast(vector, INTEGERS)
    sign = builder.and_(builder.lshr(bits, integers(16)), integers(0x8000))
    magnitude = builder.and_(bits, integers(0x7FFFFFFF))
    is_odd = builder.and_(builder.lshr(magnitude, integers(13)), integers(1))
    # The exponent's offset is 15 instead of 127, and 13 bits of the fraction are rounded away.
    normal = builder.lshr(builder.add(magnitude, builder.add(is_odd, integers(0xFFF - (112 << 23)))), integers(13))
    # Below 2**-14 the sum with 0.5 rounds to a multiple of 2**-24, which then stands in the low bits.
    half = integers(126 << 23)
    sum_ = builder.fadd(builder.bitcast(magnitude, VECTOR), builder.bitcast(half, VECTOR))
    subnormal = builder.sub(builder.bitcast(sum_, INTEGERS), half)
    is_normal = builder.icmp_unsigned(">=", magnitude, integers(113 << 23))
    is_held = builder.icmp_unsigned("<", magnitude, integers(_BEYOND_FLOAT16))
    halves = builder.select(is_held, builder.select(is_normal, normal, subnormal), integers(_NAN >> 16))
    return builder.trunc(builder.or_(halves, sign), HALVES)


def _has_half_conversion() -> bool:
    return has_feature("f16c") or "aarch64" in llvm.get_process_triple() or "arm64" in llvm.get_process_triple()


class NumberKind(NamedTuple):
    """How numbers of a kind are kept.

    Attributes:
        size: Bytes of each.
        load: From the address of LANES of them to a vector.
        rounded: From a vector to LANES of them.
    """

    size: int
    load: Callable[[Any, Any], Any]
    rounded: Callable[[Any, Any], Any]


NUMBERS = {
    FLOAT32: NumberKind(4, load, lambda _, vector: vector),
    BFLOAT16: NumberKind(2, lambda builder, pointer: from_bfloat16(builder, _halves(builder, pointer)), to_bfloat16),
    FLOAT16: NumberKind(2, lambda builder, pointer: _from_float16(builder, _halves(builder, pointer)), _to_float16),
}


def for_kind(builder, kind, generate, among=tuple(NUMBERS)):
    """Emit `generate(number_kind)` for each kind that numbers may have; the one of `kind` runs.

    Returns:
        What it returns, where that is not None.
    """
    blocks = {number: builder.append_basic_block("of_kind") for number in among}
    choice = builder.switch(kind, blocks[among[0]])
    done = builder.append_basic_block("done")
    results = []
    for number, block in blocks.items():
        choice.add_case(word(number), block)
        builder.position_at_end(block)
        results.append((generate(NUMBERS[number]), builder.block))
        builder.branch(done)
    builder.position_at_end(done)
    if results[0][0] is None:
        return None
    result = builder.phi(results[0][0].type)
    for value, block in results:
        result.add_incoming(value, block)
    return result


class Loop:
    """A loop in LLVM's form, whose body runs at least once.

    Args:
        builder: Where to emit it; is in the body afterwards, and behind the loop after `close`.
        state: First values of what the loop changes.

    Attributes:
        index: The number of the pass, from 0 on in steps of `step`.
        state: Their values at the start of a pass.
    """

    def __init__(self, builder, state, step: int = 1):
        self._builder = builder
        self._step = step
        entry = builder.block
        self._body = builder.append_basic_block("body")
        self._done = builder.append_basic_block("done")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(WORD)
        self.index.add_incoming(word(0), entry)
        self.state = []
        for value in state:
            phi = builder.phi(value.type)
            phi.add_incoming(value, entry)
            self.state.append(phi)

    def close(self, count, state) -> None:
        """End the body: pass on `state`, and go on while the index is below `count`."""
        builder = self._builder
        following = builder.add(self.index, word(self._step))
        end = builder.block
        builder.cbranch(builder.icmp_signed("<", following, count), self._body, self._done)
        self.index.add_incoming(following, end)
        for phi, value in zip(self.state, state, strict=True):
            phi.add_incoming(value, end)
        builder.position_at_end(self._done)
