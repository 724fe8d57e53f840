"""What `intrinsics` declares, for Numba: imported only to compile.

It is written in LLVM's portable vector types: LLVM chooses the instructions that the processor has (AVX-512, AVX2,
SSE2, NEON).
"""

# Numba's extension interface is untyped, and hands each function its typing context whether it needs it or not.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ARG001

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from shared.kernels.intrinsics import BLOCK, LANES

_BYTE, _WORD, _BIT = ir.IntType(8), ir.IntType(64), ir.IntType(1)
_BYTES = ir.VectorType(_BYTE, BLOCK)
_NUMBER = ir.IntType(32)
_NUMBERS = ir.VectorType(_NUMBER, LANES)


@intrinsic
def byte_range_mask(typing_context, data, index, fold, low, width):
    """Bit k is set where `((data[index + k] | fold) - low) % 256 < width`, for the 64 bytes from index on."""

    def generate(context, builder, signature, arguments):
        array, index, fold, low, width = arguments
        pointer = _element_pointer(context, builder, signature.args[0], array, index, _BYTES)
        block = builder.load(pointer, align=1)
        block = builder.or_(block, _broadcast(builder, fold))
        block = builder.sub(block, _broadcast(builder, low))
        return builder.bitcast(builder.icmp_unsigned("<", block, _broadcast(builder, width)), _WORD)

    return types.uint64(data, types.int64, types.uint8, types.uint8, types.uint8), generate


@intrinsic
def least_of_lanes(typing_context, data, index):
    """The least of 16 unsigned numbers of 32 bits, from `data[index]` on."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        pointer = _element_pointer(context, builder, signature.args[0], array, index, _NUMBERS)
        function_type = ir.FunctionType(_NUMBER, [_NUMBERS])
        reduce = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.vector.reduce.umin.v{LANES}i32")
        return builder.call(reduce, [builder.load(pointer, align=4)])

    return types.uint32(data, types.int64), generate


@intrinsic
def load_word(typing_context, data, index):
    """The eight bytes from index on as a little-endian number."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        return builder.load(_element_pointer(context, builder, signature.args[0], array, index, _WORD), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """How many low bits of a number other than zero are clear."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(_BIT, 1))

    return types.int64(types.uint64), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of `array[index]`, to be read soon."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        pointer = _element_pointer(context, builder, signature.args[0], array, index, _BYTE)
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        read, keep, data_cache = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def store_word(typing_context, array, index, word):
    """Write a little-endian number over eight bytes, from `array[index]` on."""

    def generate(context, builder, signature, arguments):
        array, index, word = arguments
        pointer = _element_pointer(context, builder, signature.args[0], array, index, _WORD)
        builder.store(word, pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@intrinsic
def leading_zeros(typing_context, word):
    """How many high bits of a number other than zero are clear."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(_BIT, 1))

    return types.int64(types.uint64), generate


@intrinsic
def allocate_like(typing_context, array, count):
    """An array of another's type from the C library."""

    def generate(context, builder, signature, arguments):
        item_size = context.get_abi_sizeof(context.get_data_type(array.dtype))
        size = builder.mul(arguments[1], ir.Constant(_WORD, item_size))
        function_type = ir.FunctionType(_BYTE.as_pointer(), [_WORD])
        malloc = cgutils.get_or_insert_function(builder.module, function_type, "malloc")
        address = builder.ptrtoint(builder.call(malloc, [size]), _WORD)
        is_there = builder.icmp_unsigned("!=", address, ir.Constant(_WORD, 0))
        length = builder.select(is_there, arguments[1], ir.Constant(_WORD, 0))
        return make_array(context, builder, array, address, length)

    return array(array, types.int64), generate


@intrinsic
def release(typing_context, array):
    """Give an array back to the C library."""

    def generate(context, builder, signature, arguments):
        pointer = _element_pointer(context, builder, array, arguments[0], ir.Constant(_WORD, 0), _BYTE)
        function_type = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer()])
        free = cgutils.get_or_insert_function(builder.module, function_type, "free")
        builder.call(free, [pointer])
        return context.get_dummy_value()

    return types.void(array), generate


def make_array(context, builder, array_type, address, length):
    """A contiguous array of one dimension at an address, which nobody owns."""
    array = context.make_array(array_type)(context, builder)
    item_size = ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    populate_array(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=cgutils.pack_array(builder, [length]),
        strides=cgutils.pack_array(builder, [item_size]),
        itemsize=item_size,
        meminfo=None,
    )
    return array._getvalue()


def _element_pointer(context, builder, array_type, array, index, pointee):
    """The address of an element of a one-dimensional contiguous array, as a pointer to another type."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.bitcast(builder.gep(struct.data, [index]), pointee.as_pointer())


def _broadcast(builder, byte):
    vector = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), None)
    return builder.shuffle_vector(vector, ir.Constant(_BYTES, ir.Undefined), zeros)
