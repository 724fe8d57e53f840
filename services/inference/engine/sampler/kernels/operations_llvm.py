"""What `operations` declares, for Numba: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shared.kernels import llvm


@intrinsic
def multiply_add(typing_context, a, b, c):
    """`a * b + c`."""

    def generate(context, builder, signature, arguments):
        return llvm.multiply_add(builder, *arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@intrinsic
def sum_any_order(typing_context, a, b):
    """`a + b`."""

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments, flags=("reassoc",))

    return types.float64(types.float64, types.float64), generate


def _cast(source, result, kind):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], kind)

    return result(source), generate


@intrinsic
def bits(typing_context, number):
    """The bits of a number in float64."""
    return _cast(types.float64, types.int64, ir.IntType(64))


@intrinsic
def from_bits(typing_context, word):
    """The number in float64 with these bits."""
    return _cast(types.int64, types.float64, ir.DoubleType())


@intrinsic
def bits32(typing_context, number):
    """The bits of a number in float32."""
    return _cast(types.float32, types.int32, ir.IntType(32))


@intrinsic
def from_bits32(typing_context, word):
    """The number in float32 with these bits."""
    return _cast(types.int32, types.float32, ir.FloatType())


@intrinsic
def equal_mask(typing_context, numbers, index, number):
    """Bit k is set where `numbers[index + k] == number`, for the 64 numbers from index on."""

    def generate(context, builder, signature, arguments):
        array, index, number = arguments
        pointer = llvm.address(context, builder, signature.args[0], array, index, ir.VectorType(number.type, 64))
        is_equal = builder.icmp_signed("==", builder.load(pointer, align=4), llvm.broadcast(builder, number, 64))
        return builder.bitcast(is_equal, ir.IntType(64))

    return types.uint64(numbers, types.int64, types.int32), generate
