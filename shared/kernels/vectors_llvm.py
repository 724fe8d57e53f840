"""What `vectors` declares, for Numba, in LLVM's portable vector types: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: ARG001

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from shared.kernels import vector_code
from shared.kernels.intrinsics import LANES
from shared.kernels.llvm import address, broadcast
from shared.kernels.vector_code import FLOATS, fold, from_bfloat16, lanes_below, to_bfloat16

_FLOAT, _HALF, _WORD = ir.FloatType(), ir.IntType(16), ir.IntType(64)


class _Vector(types.Type):
    def __init__(self):
        super().__init__(name="Vector")


VECTOR = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


@intrinsic
def load(typing_context, array, index, count):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        values, index, count = arguments
        kind = _HALF if array.dtype == types.uint16 else _FLOAT
        pointer = address(context, builder, signature.args[0], values, index, kind)
        result = cgutils.alloca_once(builder, ir.VectorType(kind, LANES))
        is_whole = builder.icmp_signed(">=", count, _WORD(LANES))
        with builder.if_else(is_whole, likely=True) as (whole, part):
            with whole:
                builder.store(_load_all(builder, pointer, kind), result)
            with part:
                builder.store(ir.Constant(ir.VectorType(kind, LANES), None), result)
                _copy(builder, pointer, builder.bitcast(result, kind.as_pointer()), count)
        vector = builder.load(result)
        return vector if kind == _FLOAT else from_bfloat16(builder, vector)

    return VECTOR(array, types.int64, types.int64), generate


@intrinsic
def store(typing_context, array, index, vector, count):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        values, index, vector, count = arguments
        kind = _HALF if array.dtype == types.uint16 else _FLOAT
        pointer = address(context, builder, signature.args[0], values, index, kind)
        if kind == _HALF:
            vector = to_bfloat16(builder, vector)
        is_whole = builder.icmp_signed(">=", count, _WORD(LANES))
        with builder.if_else(is_whole, likely=True) as (whole, part):
            with whole:
                builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=_alignment(kind))
            with part:
                numbers = cgutils.alloca_once_value(builder, vector)
                _copy(builder, builder.bitcast(numbers, kind.as_pointer()), pointer, count)
        return context.get_dummy_value()

    return types.void(array, types.int64, VECTOR, types.int64), generate


def _load_all(builder, pointer, kind):
    return builder.load(builder.bitcast(pointer, ir.VectorType(kind, LANES).as_pointer()), align=_alignment(kind))


def _alignment(kind):
    return 2 if kind == _HALF else 4


def _copy(builder, source, target, count) -> None:
    """Copy the first `count` numbers, one after the other."""
    with cgutils.for_range(builder, count) as loop:
        builder.store(builder.load(builder.gep(source, [loop.index])), builder.gep(target, [loop.index]))


@intrinsic
def repeat(typing_context, number):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        return broadcast(builder, arguments[0], LANES)

    return VECTOR(types.float32), generate


@intrinsic
def exponential(typing_context, vector):
    """See `vectors` and `vector_code`."""

    def generate(context, builder, signature, arguments):
        return vector_code.exponential(builder, arguments[0])

    return VECTOR(VECTOR), generate


@intrinsic
def larger(typing_context, a, b):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        return _larger(builder, *arguments)

    return VECTOR(VECTOR, VECTOR), generate


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def first_lanes(typing_context, vector, count, others):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        vector, count, others = arguments
        return builder.select(lanes_below(builder, count), vector, broadcast(builder, others, LANES))

    return VECTOR(VECTOR, types.int64, types.float32), generate


@intrinsic
def total(typing_context, vector):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        return fold(builder, arguments[0], builder.fadd)

    return types.float32(VECTOR), generate


@intrinsic
def largest(typing_context, vector):
    """See `vectors`."""

    def generate(context, builder, signature, arguments):
        return fold(builder, arguments[0], lambda a, b: _larger(builder, a, b))

    return types.float32(VECTOR), generate


def _define_operator(symbol, instruction) -> None:
    """Let Python's operator stand for an instruction; products and sums may become one that rounds once."""

    @intrinsic
    def operate(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return getattr(builder, instruction)(*arguments, flags=("contract",))

        return VECTOR(VECTOR, VECTOR), generate

    @overload(symbol)
    def choose(a, b):
        if a is VECTOR and b is VECTOR:
            return lambda a, b: operate(a, b)  # noqa: PLW0108 - Numba compiles functions only
        if a is VECTOR and isinstance(b, types.Float):
            return lambda a, b: operate(a, repeat(b))
        if isinstance(a, types.Float) and b is VECTOR:
            return lambda a, b: operate(repeat(a), b)
        return None


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_symbol, _instruction)
