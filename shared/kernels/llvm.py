"""LLVM code that the intrinsics of several sets of kernels are made of; imported only to compile."""

# Numba's extension interface is untyped.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array

FIRST_CACHE, SECOND_CACHE = 3, 2
"""Where `prefetch` puts a cache line. The first takes so few requests at a time that memory idles between them."""

_WORD = ir.IntType(64)
_INTEGER = ir.IntType(32)
_FLOATS = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}


def has_feature(name: str) -> bool:
    """Whether Numba compiles for processors with one of LLVM's features."""
    return f"+{name}" in cpu_target.target_context.codegen()._tm_features.split(",")


def address(context, builder, array_type, array, index, pointee):
    """The address of an element of a one-dimensional contiguous array, as a pointer to another type."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.bitcast(builder.gep(struct.data, [index]), pointee.as_pointer())


def broadcast(builder, number, lanes):
    """A vector with one number in all lanes."""
    vector_type = ir.VectorType(number.type, lanes)
    undefined = ir.Constant(vector_type, ir.Undefined)
    vector = builder.insert_element(undefined, number, ir.Constant(_INTEGER, 0))
    return builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(_INTEGER, lanes), None))


def call(builder, name, result, *arguments):
    """Call a function of the C library or of LLVM."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def multiply_add(builder, a, b, c):
    """`a * b + c` of numbers or vectors, rounded once where the processor can."""
    is_vector = isinstance(a.type, ir.VectorType)
    suffix = f"v{a.type.count}{_FLOATS[a.type.element]}" if is_vector else _FLOATS[a.type]
    return call(builder, f"llvm.fmuladd.{suffix}", a.type, a, b, c)


def prefetch(builder, pointer, cache):
    """Request the cache line of an address, to be read soon; `cache` is FIRST_CACHE or SECOND_CACHE."""
    read, data = ir.Constant(_INTEGER, 0), ir.Constant(_INTEGER, 1)
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, ir.Constant(_INTEGER, cache), data)


def make_array(context, builder, array_type, start, length):
    """A contiguous array of one dimension at an address, without an owner."""
    array = context.make_array(array_type)(context, builder)
    item_size = ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    populate_array(
        array,
        data=builder.inttoptr(start, array.data.type),
        shape=cgutils.pack_array(builder, [length]),
        strides=cgutils.pack_array(builder, [item_size]),
        itemsize=item_size,
        meminfo=None,
    )
    return array._getvalue()
