"""What `atomics` declares, for Numba: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from shared.kernels.llvm import address

_WORD = ir.IntType(64)


@intrinsic
def add(typing_context, array, index, amount):
    """See `atomics`."""

    def generate(context, builder, signature, arguments):
        array, index, amount = arguments
        return builder.atomic_rmw(
            "add", address(context, builder, signature.args[0], array, index, _WORD), amount, "monotonic"
        )

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def claim(typing_context, array, index, value):
    """See `atomics`."""

    def generate(context, builder, signature, arguments):
        array, index, value = arguments
        place = address(context, builder, signature.args[0], array, index, _WORD)
        outcome = builder.cmpxchg(place, _WORD(0), value, "acquire", "monotonic")
        return builder.extract_value(outcome, 1)

    return types.boolean(array, types.int64, types.uint64), generate


@intrinsic
def publish(typing_context, array, index, value):
    """See `atomics`."""

    def generate(context, builder, signature, arguments):
        array, index, value = arguments
        place = address(context, builder, signature.args[0], array, index, _WORD)
        builder.store_atomic(value, place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@intrinsic
def observe(typing_context, array, index):
    """See `atomics`."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        return builder.load_atomic(address(context, builder, signature.args[0], array, index, _WORD), "acquire", 8)

    return types.uint64(array, types.int64), generate
