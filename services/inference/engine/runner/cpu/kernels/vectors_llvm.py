"""LLVM's portable vector code that the engine's intrinsics are made of; imported only to compile."""

# Numba's extension interface is untyped.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core.registry import cpu_target

from services.inference.engine.runner.cpu.kernels.intrinsics import LANES
from shared.kernels.vector_code import splat

BYTE, HALF_WORD, WORD, BIT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(1)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(HALF_WORD, LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)
ZERO = ir.Constant(VECTOR, None)


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


def _integers(value: int):
    return ir.Constant(INTEGERS, [ir.Constant(HALF_WORD, value)] * LANES)


def store_or_add(builder, vector, pointer, add):
    """Write a vector from the address of its first number on, or add it to what is there."""
    with builder.if_else(add) as (then, otherwise):
        with then:
            store(builder, builder.fadd(load(builder, pointer), vector), pointer)
        with otherwise:
            store(builder, vector, pointer)


def load_halves(builder, pointer):
    """A vector of numbers of 16 bits from an address on, which need not be aligned."""
    return builder.load(builder.bitcast(pointer, HALVES.as_pointer()), align=2)


def from_bfloat16(builder, halves):
    """The numbers whose upper halves a vector holds."""
    bits = builder.shl(builder.zext(halves, INTEGERS), _integers(16))
    return builder.bitcast(bits, VECTOR)


def from_float16(builder, halves):
    """A vector of finite numbers of 16 bits in 32."""
    if _has_half_conversion():
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    # Exponent and fraction moved to their places are the number over 2**112, for subnormal ones too.
    wide = builder.zext(halves, INTEGERS)
    sign = builder.shl(builder.and_(wide, _integers(0x8000)), _integers(16))
    magnitude = builder.bitcast(builder.shl(builder.and_(wide, _integers(0x7FFF)), _integers(13)), VECTOR)
    scaled = builder.fmul(magnitude, splat(2.0**112))
    return builder.bitcast(builder.or_(builder.bitcast(scaled, INTEGERS), sign), VECTOR)


def _has_half_conversion() -> bool:
    return has_feature("f16c") or "aarch64" in llvm.get_process_triple() or "arm64" in llvm.get_process_triple()


def has_feature(name: str) -> bool:
    """Whether Numba compiles for processors with one of LLVM's features."""
    return f"+{name}" in cpu_target.target_context.codegen()._tm_features.split(",")


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
