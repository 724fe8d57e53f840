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
from numba.np.numpy_support import as_dtype

from shared.kernels import llvm
from shared.kernels.intrinsics import BLOCK, LANES

_BYTE, _WORD, _BIT = ir.IntType(8), ir.IntType(64), ir.IntType(1)
_BYTES = ir.VectorType(_BYTE, BLOCK)
_NUMBER = ir.IntType(32)
_POINTER = _BYTE.as_pointer()
_WORDS = ir.VectorType(_WORD, LANES)
_NONE = "_Py_NoneStruct"
_WRITABLE = 0x0001 | 0x0100 | 0x0400  # NumPy's flags of contiguous, aligned, writable memory
_PLACES = ir.Constant(_BYTES, list(range(BLOCK)))


@intrinsic
def byte_range_mask(typing_context, data, index, fold, low, width):
    """Bit k is set where `((data[index + k] | fold) - low) % 256 < width`, for the 64 bytes from index on."""

    def generate(context, builder, signature, arguments):
        array, index, fold, low, width = arguments
        pointer = llvm.address(context, builder, signature.args[0], array, index, _BYTES)
        block = builder.load(pointer, align=1)
        block = builder.or_(block, llvm.broadcast(builder, fold, BLOCK))
        block = builder.sub(block, llvm.broadcast(builder, low, BLOCK))
        return builder.bitcast(builder.icmp_unsigned("<", block, llvm.broadcast(builder, width, BLOCK)), _WORD)

    return types.uint64(data, types.int64, types.uint8, types.uint8, types.uint8), generate


@intrinsic
def load_word(typing_context, data, index):
    """The eight bytes from index on as a little-endian number."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        return builder.load(llvm.address(context, builder, signature.args[0], array, index, _WORD), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def store_set_bits(typing_context, data, index, mask, base):
    """The place of each set bit plus a base, to `data[index]` and after it; returns how many there are.

    Where the processor has an instruction for it (VPCOMPRESSB), the places leave the mask all at once.
    """

    def generate(context, builder, signature, arguments):
        array, index, mask, base = arguments
        pointer = llvm.address(context, builder, signature.args[0], array, index, _WORD)
        count = builder.ctpop(mask)
        if llvm.has_feature("avx512vbmi2"):
            _compress(builder, pointer, mask, base, count)
        else:
            _walk(builder, pointer, mask, base, count)
        return count

    return types.int64(data, types.int64, types.uint64, types.int64), generate


def _compress(builder, pointer, mask, base, count):
    """Write all places of a block, the set ones in front: LANES of them first, the rest only if there are more."""
    bits = builder.bitcast(mask, ir.VectorType(_BIT, BLOCK))
    undefined = ir.Constant(_BYTES, ir.Undefined)
    places = llvm.call(builder, f"llvm.experimental.vector.compress.v{BLOCK}i8", _BYTES, _PLACES, bits, undefined)
    base = llvm.broadcast(builder, base, LANES)

    def store(first):
        lanes = ir.Constant(ir.VectorType(_NUMBER, LANES), list(range(first, first + LANES)))
        part = builder.add(builder.zext(builder.shuffle_vector(places, undefined, lanes), _WORDS), base)
        target = builder.bitcast(builder.gep(pointer, [ir.Constant(_WORD, first)]), _WORDS.as_pointer())
        builder.store(part, target, align=8)

    store(0)
    with builder.if_then(builder.icmp_unsigned(">", count, ir.Constant(_WORD, LANES)), likely=False):
        for first in range(LANES, BLOCK, LANES):
            store(first)


def _walk(builder, pointer, mask, base, count):
    """Write the places one by one: LANES of them whatever their number, without a branch that depends on it."""
    left = cgutils.alloca_once_value(builder, mask)

    def write(number):
        bits = builder.load(left)
        place = builder.add(base, builder.cttz(bits, ir.Constant(_BIT, 0)))
        builder.store(place, builder.gep(pointer, [number]))
        builder.store(builder.and_(bits, builder.sub(bits, ir.Constant(_WORD, 1))), left)

    for number in range(LANES):
        write(ir.Constant(_WORD, number))
    with cgutils.for_range_slice(builder, ir.Constant(_WORD, LANES), count, ir.Constant(_WORD, 1)) as (index, _):
        write(index)


@intrinsic
def find_utf8(typing_context, string, sizes, index):
    """The address of a string's UTF-8, which Python keeps with it; its size goes to `sizes[index]`."""

    def generate(context, builder, signature, arguments):
        string, sizes, index = arguments
        size = llvm.address(context, builder, signature.args[1], sizes, index, _WORD)
        start = llvm.call(builder, "PyUnicode_AsUTF8AndSize", _POINTER, builder.inttoptr(string, _POINTER), size)
        return builder.ptrtoint(start, _WORD)

    return types.int64(types.int64, sizes, types.int64), generate


@intrinsic
def new_array(typing_context, numpy_api, data, count):
    """A new NumPy array of the first numbers of another; 0 if there is no memory for it."""

    def generate(context, builder, signature, arguments):
        numpy_api, data, count = arguments
        dtype = as_dtype(signature.args[1].dtype)
        made = _make_array(builder, numpy_api, dtype, count, ir.Constant(_POINTER, None), flags=0)
        with builder.if_then(cgutils.is_not_null(builder, made), likely=True):
            # The address of the numbers is the first field of an array behind what all objects have.
            field = builder.gep(made, [builder.extract_value(numpy_api, 3)])
            target = builder.load(builder.bitcast(field, _POINTER.as_pointer()))
            source = llvm.address(context, builder, signature.args[1], data, _WORD(0), _BYTE)
            llvm.call(builder, "memcpy", _POINTER, target, source, builder.mul(count, _WORD(dtype.itemsize)))
        return builder.ptrtoint(made, _WORD)

    return types.int64(numpy_api, data, types.int64), generate


def _make_array(builder, numpy_api, dtype, count, data, *, flags):
    """Call PyArray_New for an array of one dimension, of new memory if `data` is null."""
    parameters = [_POINTER, _NUMBER, _WORD.as_pointer(), _NUMBER, _POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER]
    new = builder.inttoptr(builder.extract_value(numpy_api, 1), ir.FunctionType(_POINTER, parameters).as_pointer())
    kind = builder.inttoptr(builder.extract_value(numpy_api, 0), _POINTER)
    shape, nothing = cgutils.alloca_once_value(builder, count), ir.Constant(_POINTER, None)
    return builder.call(
        new, [kind, _NUMBER(1), shape, _NUMBER(dtype.num), nothing, data, _NUMBER(0), _NUMBER(flags), nothing]
    )


@intrinsic
def new_list(typing_context, count):
    """A new list of null pointers; 0 if there is no memory for it."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(llvm.call(builder, "PyList_New", _POINTER, arguments[0]), _WORD)

    return types.int64(types.int64), generate


@intrinsic
def put_view(typing_context, numpy_api, target, place, owner, data, index, count):
    """Put a NumPy array of numbers that belong to another into a new list; 0 if there is no memory for it, else 1."""

    def generate(context, builder, signature, arguments):
        numpy_api, target, place, owner, data, index, count = arguments
        start = llvm.address(context, builder, signature.args[4], data, index, _BYTE)
        view = _make_array(builder, numpy_api, as_dtype(signature.args[4].dtype), count, start, flags=_WRITABLE)
        is_put = cgutils.alloca_once_value(builder, _WORD(0))
        with builder.if_then(cgutils.is_not_null(builder, view), likely=True):
            keep = ir.FunctionType(_NUMBER, [_POINTER, _POINTER]).as_pointer()
            # It takes over the reference, whatever it returns.
            reference = llvm.call(builder, "Py_NewRef", _POINTER, builder.inttoptr(owner, _POINTER))
            failed = builder.call(builder.inttoptr(builder.extract_value(numpy_api, 2), keep), [view, reference])
            with builder.if_else(cgutils.is_null(builder, failed), likely=True) as (kept, not_kept):
                with kept:
                    llvm.call(builder, "PyList_SetItem", _NUMBER, builder.inttoptr(target, _POINTER), place, view)
                    builder.store(_WORD(1), is_put)
                with not_kept:
                    llvm.call(builder, "Py_DecRef", ir.VoidType(), view)
        return builder.load(is_put)

    word = types.int64
    return word(numpy_api, word, word, word, data, word, word), generate


@intrinsic
def drop(typing_context, thing):
    """Give a reference back."""

    def generate(context, builder, signature, arguments):
        llvm.call(builder, "Py_DecRef", ir.VoidType(), builder.inttoptr(arguments[0], _POINTER))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def none(typing_context):
    """None, with a new reference."""

    def generate(context, builder, signature, arguments):
        known = builder.module.globals.get(_NONE) or ir.GlobalVariable(builder.module, _BYTE, _NONE)
        return builder.ptrtoint(llvm.call(builder, "Py_NewRef", _POINTER, known), _WORD)

    return types.int64(), generate


@intrinsic
def copy_bytes(typing_context, address, target, index, count):
    """Copy `count` bytes from an address to `target[index]` and after it."""

    def generate(context, builder, signature, arguments):
        address, target, index, count = arguments
        source = builder.inttoptr(address, _POINTER)
        place = llvm.address(context, builder, signature.args[1], target, index, _BYTE)
        llvm.call(builder, "memcpy", _POINTER, place, source, count)
        return context.get_dummy_value()

    return types.void(types.int64, target, types.int64, types.int64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """How many low bits of a number other than zero are clear."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(_BIT, 1))

    return types.int64(types.uint64), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Request the cache line of `array[index]`, to be read soon."""

    def generate(context, builder, signature, arguments):
        array, index = arguments
        pointer = llvm.address(context, builder, signature.args[0], array, index, _BYTE)
        llvm.prefetch(builder, pointer, llvm.FIRST_CACHE)
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def store_word(typing_context, array, index, word):
    """Write a little-endian number over eight bytes, from `array[index]` on."""

    def generate(context, builder, signature, arguments):
        array, index, word = arguments
        pointer = llvm.address(context, builder, signature.args[0], array, index, _WORD)
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
def take_ticket(typing_context, tickets, index):
    """Add 1 to a counter that threads share, and return what it was."""

    def generate(context, builder, signature, arguments):
        counter = llvm.address(context, builder, signature.args[0], arguments[0], arguments[1], _WORD)
        return builder.atomic_rmw("add", counter, _WORD(1), "monotonic")

    return types.int64(tickets, types.int64), generate


@intrinsic
def allocate_like(typing_context, array, count):
    """An array of another's type from the C library."""

    def generate(context, builder, signature, arguments):
        item_size = context.get_abi_sizeof(context.get_data_type(array.dtype))
        size = builder.mul(arguments[1], ir.Constant(_WORD, item_size))
        start = builder.ptrtoint(llvm.call(builder, "malloc", _POINTER, size), _WORD)
        is_there = builder.icmp_unsigned("!=", start, ir.Constant(_WORD, 0))
        length = builder.select(is_there, arguments[1], ir.Constant(_WORD, 0))
        return llvm.make_array(context, builder, array, start, length)

    return array(array, types.int64), generate


@intrinsic
def release(typing_context, array):
    """Give an array back to the C library."""

    def generate(context, builder, signature, arguments):
        pointer = llvm.address(context, builder, array, arguments[0], ir.Constant(_WORD, 0), _BYTE)
        llvm.call(builder, "free", ir.VoidType(), pointer)
        return context.get_dummy_value()

    return types.void(array), generate
