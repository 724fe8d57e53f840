"""What `lanes` declares, for Numba, in LLVM's portable vector types: imported only to compile."""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from shared.bpe.kernels.lanes import FEW, MANY
from shared.kernels import llvm

_NUMBER, _BIT = ir.IntType(32), ir.IntType(1)


class _Lanes(types.Type):
    """So many numbers."""

    def __init__(self, count):
        super().__init__(name=f"Lanes{count}")
        self.count = count
        self.vector = ir.VectorType(_NUMBER, count)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.vector)


def _loader(count):
    def load(typing_context, data, index):
        lanes = _Lanes(count)

        def generate(context, builder, signature, arguments):
            data, index = arguments
            return builder.load(llvm.address(context, builder, signature.args[0], data, index, lanes.vector), align=4)

        return lanes(data, types.int64), generate

    return intrinsic(load)


load_few, load_many = _loader(FEW), _loader(MANY)


@intrinsic
def with_lane(typing_context, lanes, number, value):
    """See `lanes`."""

    def generate(context, builder, signature, arguments):
        others, number, value = arguments
        number = llvm.broadcast(builder, builder.trunc(number, _NUMBER), lanes.count)
        is_it = builder.icmp_unsigned("==", ir.Constant(lanes.vector, list(range(lanes.count))), number)
        return builder.select(is_it, llvm.broadcast(builder, value, lanes.count), others)

    return lanes(lanes, types.uint64, types.uint32), generate


@intrinsic
def without(typing_context, lanes, mask):
    """See `lanes`."""

    def generate(context, builder, signature, arguments):
        others, mask = arguments
        mask = mask if lanes.count == MANY else builder.trunc(mask, ir.IntType(lanes.count))
        all_bits = ir.Constant(lanes.vector, [0xFFFFFFFF] * lanes.count)
        return builder.select(builder.bitcast(mask, ir.VectorType(_BIT, lanes.count)), all_bits, others)

    return lanes(lanes, types.uint64), generate


@intrinsic
def least(typing_context, lanes):
    """See `lanes`."""

    def generate(context, builder, signature, arguments):
        return llvm.call(builder, f"llvm.vector.reduce.umin.v{lanes.count}i32", _NUMBER, *arguments)

    return types.uint32(lanes), generate
