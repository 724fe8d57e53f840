"""Kernels to machine code, by Numba. Imported only where no object file is found.

Each kernel becomes a function that Numba's other functions can call. Around each there is one more for Python, which
takes its arguments from a frame of words (see `compiling`).
"""

# Numba is untyped, and this file uses its internals.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numba
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np import arrayobj

from shared.kernels import llvm, types
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.kernel_function import KernelFunction

_WORD = ir.IntType(64)


def build(package: str) -> bytes:
    """An object file with all kernels in the modules of a package, each under its `symbol`."""
    dispatchers: dict[str, Any] = {}
    context = cpu_target.target_context
    codegen = context.codegen()
    library = codegen.create_library("kernels")
    module = library.create_ir_module("kernels")
    with _indices_as_they_are():
        for kernel in _all_kernels(package):
            dispatcher = _dispatcher_of(kernel, dispatchers)
            compilation = dispatcher.overloads[dispatcher.signatures[0]]
            library.add_linking_library(compilation.library)
            _define_entry(context, module, kernel, compilation)
    library.add_ir_module(module)
    entries = {function.name for function in module.functions if not function.is_declaration}
    _see_callers(library, entries)
    with global_compiler_lock:
        library.finalize()
    code: bytes = codegen._tm.emit_object(library._final_module)
    return code


@contextmanager
def _indices_as_they_are() -> Iterator[None]:
    """Compile `array[index]` without a test for negative indices, which takes a quarter of the kernels' time."""

    def fix_integer_index(context, builder, kind, index, size):  # noqa: ARG001
        return context.cast(builder, index, kind, numba.types.intp)

    original = arrayobj.fix_integer_index
    arrayobj.fix_integer_index = fix_integer_index
    try:
        yield
    finally:
        arrayobj.fix_integer_index = original


def _see_callers(library: Any, entries: set[str]) -> None:
    """Mark functions as internal once all is linked: LLVM then knows all callers.

    Arguments that are always the same, as are five of the seven values of an array, are then not passed.
    """
    optimize = library._optimize_final_module

    def optimize_as_a_whole() -> None:
        for function in library._final_module.functions:
            if not function.is_declaration and function.name not in entries:
                function.linkage = "internal"
        optimize()

    library._optimize_final_module = optimize_as_a_whole


def _all_kernels(package: str) -> Iterator[KernelFunction]:
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            for kernel in getattr(value, "kernels", [value]):
                if isinstance(kernel, KernelFunction) and kernel.function.__module__ == module.__name__:
                    yield kernel


def _dispatcher_of(kernel: KernelFunction, dispatchers: dict[str, Any]) -> Any:
    """The compiled function of a kernel that other kernels call; compiles those that it calls first."""
    if kernel.symbol not in dispatchers:
        function = kernel.function
        scope = dict(function.__globals__)
        for name in function.__code__.co_names:
            value = scope.get(name)
            if isinstance(value, KernelFunction):
                scope[name] = _dispatcher_of(value, dispatchers)
            elif isinstance(value, Intrinsic):
                scope[name] = getattr(importlib.import_module(value.module), value.name)
        bound = FunctionType(function.__code__, scope, function.__name__)
        bound.__module__ = function.__module__
        compile_for = numba.njit(
            _numba_type(kernel.result)(*map(_numba_type, kernel.arguments.values())),
            nogil=True,
            error_model="numpy",
            forceinline=kernel.inline,
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            _nrt=False,  # kernels count no references, which would cost more than the work of a small one
        )
        dispatchers[kernel.symbol] = compile_for(bound)
    return dispatchers[kernel.symbol]


def _numba_type(kind: types.Argument | types.Result) -> Any:
    if isinstance(kind, types.Array):
        return numba.types.Array(numba.from_dtype(kind.dtype), 1, "C", readonly=kind.readonly)
    if isinstance(kind, types.Group):
        return numba.types.BaseTuple.from_types(list(map(_numba_type, kind.fields.values())), kind.kind)
    return numba.types.void if kind is None else numba.from_dtype(kind.dtype)


def _define_entry(context, module, kernel: KernelFunction, compilation) -> None:
    """Define `void symbol(int64 *words)`, which unpacks the words, calls the kernel and packs its results."""
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()]), kernel.symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    words = _Words(builder, entry.args[0])
    signature = compilation.signature
    arguments = [_unpack(context, builder, kind, words) for kind in signature.args]
    convention = context.call_conv
    function_type = convention.get_function_type(signature.return_type, signature.args)
    function = ir.Function(module, function_type, compilation.fndesc.llvm_func_name)
    _, result = convention.call_function(builder, function, signature.return_type, signature.args, arguments)
    results = []
    if isinstance(kernel.result, types.Group):
        results = [builder.extract_value(result, index) for index in range(len(kernel.result.fields))]
    elif kernel.result is not None:
        results = [result]
    for value in results:
        builder.store(_as_word(builder, value), words.next_address())
    builder.ret_void()


class _Words:
    """Goes through the words of a call."""

    def __init__(self, builder, pointer):
        self._builder = builder
        self._pointer = pointer
        self._index = 0

    def next_address(self) -> Any:
        address = self._builder.gep(self._pointer, [_WORD(self._index)])
        self._index += 1
        return address

    def next(self) -> Any:
        return self._builder.load(self.next_address())


def _unpack(context, builder, kind, words: _Words) -> Any:
    """A value of one of Numba's types from as many words as it takes."""
    if isinstance(kind, numba.types.BaseNamedTuple):
        return context.make_tuple(builder, kind, [_unpack(context, builder, field, words) for field in kind.types])
    if isinstance(kind, numba.types.Array):
        return llvm.make_array(context, builder, kind, words.next(), words.next())
    word = words.next()
    value_type = context.get_value_type(kind)
    if isinstance(kind, numba.types.Float):
        bits = builder.trunc(word, ir.IntType(32)) if kind.bitwidth == 32 else word
        return builder.bitcast(bits, value_type)
    return word if value_type == _WORD else builder.trunc(word, value_type)


def _as_word(builder, value) -> Any:
    if isinstance(value.type, ir.FloatType):
        value = builder.bitcast(value, ir.IntType(32))
    elif isinstance(value.type, ir.DoubleType):
        value = builder.bitcast(value, _WORD)
    return value if value.type == _WORD else builder.zext(value, _WORD)
