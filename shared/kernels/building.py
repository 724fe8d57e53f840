"""Kernels to machine code, by Numba: `python -m shared.kernels.building PACKAGE` writes an object file to its output.

Only a child of the process that needs the file runs this (see `compiler_process`): compiling takes 200 MB and more.

Each kernel becomes a function that Numba's other functions can call. Around each there is one more for Python, which
takes its arguments from a frame of words (see `compiling`).
"""

# Numba is untyped, and this file uses its internals.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

import gc
import hashlib
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numba
from llvmlite import ir
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np import arrayobj

from shared.kernels import llvm, types
from shared.kernels.intrinsics import Intrinsic
from shared.kernels.kernel_function import KernelFunction

_WORD = ir.IntType(64)


def build(package: str) -> bytes:
    """An object file with the kernels in the modules of a package that Python may call, each under its `symbol`."""
    _adapt_numba()
    dispatchers: dict[str, Any] = {}
    context = cpu_target.target_context
    codegen = context.codegen()
    library = codegen.create_library("kernels")
    module = library.create_ir_module("kernels")
    for kernel in filter(lambda kernel: kernel.has_entry, _all_kernels(package)):
        dispatcher = _dispatcher_of(kernel, dispatchers)
        compilation = dispatcher.overloads[dispatcher.signatures[0]]
        library.add_linking_library(compilation.library)
        _define_entry(context, module, kernel, compilation)
    library.add_ir_module(module)
    entries = {function.name for function in module.functions if not function.is_declaration}
    with global_compiler_lock:
        code: bytes = codegen._tm.emit_object(_optimized_as_a_whole(library, entries))
    return code


class _UnfinishedLibrary(JITCodeLibrary):
    """The code of one function, as Numba generates it.

    Numba would optimize and emit it, and with it all that it calls, which then happens again in each of its callers:
    half of the time of compiling. Here the kernels of a package are optimized once, together.
    """

    def add_llvm_module(self, ll_module):
        self._final_module.link_in(ll_module)

    def finalize(self):
        self._finalized = True


def _adapt_numba() -> None:
    """Change Numba for all that this process compiles."""

    def fix_integer_index(context, builder, kind, index, size):  # noqa: ARG001
        return context.cast(builder, index, kind, numba.types.intp)

    # `array[index]` without a test for negative indices, which takes a quarter of the kernels' time.
    arrayobj.fix_integer_index = fix_integer_index
    JITCPUCodegen._library_class = _UnfinishedLibrary
    JITCPUCodegen.set_env = lambda *_: None  # it would be written into code that is not in memory


def _optimized_as_a_whole(library: Any, entries: set[str]) -> Any:
    """The module of a library and of all that it uses, of which the entries alone can be called from outside.

    LLVM then knows all callers: arguments that are always the same, as are five of the seven values of an array, are
    not passed.
    """
    module = library._final_module
    waiting, linked = [*library._linking_libraries], {library}
    while waiting:
        if (used := waiting.pop()) not in linked:
            linked.add(used)
            waiting += used._linking_libraries
            module.link_in(used._final_module)
    for function in module.functions:
        if not function.is_declaration and function.name not in entries:
            function.linkage = "internal"
    library._optimize_final_module()
    return module


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
    if isinstance(kernel.result, types.Scalar) and kernel.result.is_object:
        _define_builtin(module, entry, words.count - 1)


def _define_builtin(module, entry, result: int) -> None:
    """Define `PyObject *symbol.builtin(PyObject *capsule, PyObject *argument)` for `Call.builtin`."""
    thing = ir.IntType(8).as_pointer()
    function = ir.Function(module, ir.FunctionType(thing, [thing, thing]), f"{entry.name}.builtin")
    builder = ir.IRBuilder(function.append_basic_block())
    capsule, argument = function.args
    words = llvm.call(builder, "PyCapsule_GetPointer", _WORD.as_pointer(), capsule, ir.Constant(thing, None))
    builder.store(builder.ptrtoint(argument, _WORD), words)
    builder.call(entry, [words])
    builder.ret(builder.inttoptr(builder.load(builder.gep(words, [_WORD(result)])), thing))


class _Words:
    """Goes through the words of a call."""

    def __init__(self, builder, pointer):
        self._builder = builder
        self._pointer = pointer
        self.count = 0

    def next_address(self) -> Any:
        address = self._builder.gep(self._pointer, [_WORD(self.count)])
        self.count += 1
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


def _end_with_parent() -> None:
    """Wait for the end of the standard input, which the parent holds open, and end this process."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(package: str) -> None:
    """Compile a package, and write the digest of its object file and the file itself."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The modules of the compiler are no garbage, and kernels make little: collecting it took a fifth of the time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    code = build(package)
    sys.stdout.buffer.write(hashlib.sha256(code).digest() + code)


if __name__ == "__main__":
    main(sys.argv[1])
