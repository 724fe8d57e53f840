"""Kernels: functions that Numba compiles for one signature, and how Python calls them.

A kernel runs without the interpreter lock, unless it calls Python itself. Its machine code comes from the object
file of its package, so that a process that finds it there never imports the compiler. Arguments are passed in one
block of memory, the *frame*: eight bytes for each number, for the address of each array and for its size, in the order
of the arguments, and the results after them:

    frame    a number | address of an array | its size | ... | result | ...

Called by another kernel, a kernel is an ordinary function of the compiled code. No array index in a kernel may be
negative: compiled code does not count from the end.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import numpy as np

from shared.kernels import object_file, types
from shared.kernels.kernel_function import KernelFunction

_WORD_BYTES = 8
_ADDRESS = types.Scalar.named("int64")
_ONE_ARGUMENT = 8  # METH_O


class _MethodDefinition(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


# Parts of Python's stable interface: https://docs.python.org/3/c-api/stable.html
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
_new_capsule.restype = ctypes.py_object
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes = ctypes.c_void_p, ctypes.py_object, ctypes.py_object
_new_function.restype = ctypes.py_object


class Kernel(KernelFunction):
    """A function that Numba compiles, to be called from Python and from other kernels."""

    def __call__(self, *values: Any) -> Any:
        """Run it.

        Raises:
            TypeError: If an argument is not what the signature says.
        """
        return self.prepare(*values).run()

    def prepare(self, *values: Any) -> "Call":
        """A call that can be run again and again, for what is too short to look at its arguments each time.

        Raises:
            TypeError: If an argument is not what the signature says.
        """
        return Call(self, self.words(values, [*self.arguments.values()]), values)

    def words(self, values: Sequence[Any], kinds: Sequence[types.Argument]) -> list[float]:
        """Arguments of these types as they are passed.

        Raises:
            TypeError: There are more or fewer, or one is of another type.
        """
        if len(values) != len(kinds):
            raise TypeError(f"{self.symbol} expected {len(kinds)} arguments, got {len(values)}")
        return [word for value, kind in zip(values, kinds, strict=True) for word in self._words(value, kind)]

    @cached_property
    def argument_words(self) -> "WordBlock":
        """The names and types of the words of its arguments."""
        return WordBlock([word for name, kind in self.arguments.items() for word in _named_words(name, kind)])

    @cached_property
    def result_words(self) -> "WordBlock":
        """The names and types of its results: those of its NamedTuple, or `value` for a single number."""
        if isinstance(self.result, types.Group):
            return WordBlock([word for name, kind in self.result.fields.items() for word in _named_words(name, kind)])
        return WordBlock([] if self.result is None else [*_named_words("value", self.result)])

    @cached_property
    def frame(self) -> "type[ctypes.Structure]":
        """The memory of one call."""
        fields = [("arguments", self.argument_words.structure), ("results", self.result_words.structure)]
        return type("Frame", (ctypes.Structure,), {"_fields_": fields})

    @cached_property
    def machine_code(self) -> Callable[[Any], None]:
        """What runs, loaded when it is first needed."""
        if not self.has_entry:
            raise TypeError(f"{self.symbol} is inlined into other kernels, and cannot be called by itself")
        kind = ctypes.PYFUNCTYPE if self.calls_python else ctypes.CFUNCTYPE
        prototype = kind(None, ctypes.c_void_p)
        return prototype(object_file.of(self.package).address_of(self.symbol))

    @property
    def definition(self) -> "_MethodDefinition":
        """What Python knows of `Call.builtin`. Functions look at it even when they are freed, so the first one is kept.

        From Python 3.12 on a `cached_property` keeps the last one, where several threads ask for it at once.
        """
        code = object_file.of(self.package).address_of(f"{self.symbol}.builtin")
        made = _MethodDefinition(self.__name__.encode(), code, _ONE_ARGUMENT, None)
        kept: _MethodDefinition = vars(self).setdefault("_definition", made)
        return kept

    def _words(self, value: Any, kind: types.Argument) -> list[float]:
        if isinstance(kind, types.Scalar):
            return [float(value) if kind.dtype.kind == "f" else int(value)]
        if isinstance(kind, types.Group):
            return self.words(value, [*kind.fields.values()])
        is_fit = isinstance(value, np.ndarray) and value.dtype == kind.dtype and value.flags.c_contiguous
        if not is_fit or not (kind.readonly or value.flags.writeable):
            found = f"{value.dtype}, {value.flags}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"{self.symbol} takes a contiguous array of {kind.dtype}, not {found}")
        return [value.ctypes.data, value.size]


class WordBlock:
    """The layout of numbers of which each takes eight bytes.

    Args:
        words: The name and type of each, in order.

    Attributes:
        packer: Reads and writes all of them at once.
        structure: Reads and writes them by name; any other name is an `AttributeError`.
    """

    def __init__(self, words: list[tuple[str, types.Scalar]]):
        formats, fields = ["@"], []
        for name, kind in words:
            padding = _WORD_BYTES - kind.dtype.itemsize
            formats.append(f"{kind.dtype.char}{padding}x")
            fields.append((name, np.ctypeslib.as_ctypes_type(kind.dtype)))
            if padding:
                fields.append((f"_after_{name}", ctypes.c_char * padding))
        self.packer = struct.Struct("".join(formats))
        self.structure: Any = type("Words", (ctypes.Structure,), {"__slots__": (), "_fields_": fields})


def _named_words(name: str, kind: types.Argument) -> Iterator[tuple[str, types.Scalar]]:
    if isinstance(kind, types.Group):
        for field_name, field in kind.fields.items():
            yield from _named_words(f"{name}_{field_name}", field)
    elif isinstance(kind, types.Array):
        yield f"{name}_address", _ADDRESS
        yield f"{name}_size", _ADDRESS
    else:
        yield name, kind


class Call:
    """One call of a kernel, with memory of its own for arguments and results.

    Attributes:
        arguments: The arguments by name, which may be set between two runs: a number by its own name, an array `x` by
            `x_address` and `x_size`, the field `x` of a NamedTuple `group` by `group_x`.
        results: The results of the last run, by the names in `Kernel.result_words`.
        run_only: Runs it and returns nothing.
    """

    def __init__(self, kernel: Kernel, words: list[float], values: tuple[Any, ...]):
        frame = kernel.frame()
        kernel.argument_words.packer.pack_into(frame, 0, *words)
        self._frame: Any = frame
        self._kernel = kernel
        self._values = values  # kept alive: the frame holds addresses of them
        self.run_only = partial(kernel.machine_code, ctypes.byref(frame))

    @property
    def builtin(self) -> Callable[[object], Any]:
        """A new function in C that runs a kernel made by `calling_python` in a tenth of the time that ctypes takes.

        The kernel's first argument is then the address of what the function is called with. Its only result is a
        `python_object`, which the function returns, or 0 if an exception is set.
        """
        capsule = _new_capsule(ctypes.addressof(self._frame), None, None)
        # The function keeps the call, and with it the frame, as what would be the name of its module. The call does not
        # keep the function: that would be a cycle, and the memory of its arguments would wait for a search for garbage.
        function: Callable[[object], Any] = _new_function(ctypes.byref(self._kernel.definition), capsule, self)
        return function

    @cached_property
    def arguments(self) -> Any:  # noqa: D102  # see the class
        return self._frame.arguments

    @cached_property
    def results(self) -> Any:  # noqa: D102  # see the class
        return self._frame.results

    def run(self) -> Any:
        """Run it; returns the result, or the NamedTuple where there are several."""
        self.run_only()
        kernel = self._kernel
        results = kernel.result_words.packer.unpack_from(self._frame, kernel.argument_words.packer.size)
        if isinstance(kernel.result, types.Group):
            return kernel.result.kind._make(results)
        return results[0] if results else None


class BoundKernel:
    """A kernel whose first arguments are looked at once, since they hold many arrays.

    Args:
        kernel: The kernel.
        first: Its first arguments.
    """

    def __init__(self, kernel: Kernel, *first: Any):
        kinds = [*kernel.arguments.values()]
        self._kernel, self._others = kernel, kinds[len(first) :]
        self._first = first  # kept alive: the words hold addresses of them
        self._words = kernel.words(first, kinds[: len(first)])

    def __call__(self, *others: Any) -> Any:
        """Run it with the other arguments.

        Raises:
            TypeError: If an argument is not what the signature says.
        """
        return Call(self._kernel, self._words + self._kernel.words(others, self._others), others).run()


def compiled(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function that is annotated with `shared.kernels.types`."""
    return Kernel(function)


def calling_python(function: Callable[..., Any]) -> Kernel:
    """A kernel that runs with the interpreter lock; an exception that is set when it returns is raised."""
    return Kernel(function, calls_python=True)


def inlined(function: Callable[..., Any]) -> Kernel:
    """A kernel that is inlined into its callers, whatever its size: a call passes seven values for each array.

    Python cannot call it.
    """
    return Kernel(function, inline=True, has_entry=False)


def compiled_and_inlined(function: Callable[..., Any]) -> Kernel:
    """A kernel that Python may call, and that is inlined into kernels that call it."""
    return Kernel(function, inline=True)


class Variants:
    """Kernels of one function, for arrays of several types.

    Args:
        function: Annotated with the types of the first variant.
        choices: What the annotations of some arguments are instead, by their names, in each.

    Attributes:
        kernels: One for each of the choices.
    """

    def __init__(self, function: Callable[..., Any], choices: tuple[dict[str, Any], ...]):
        self.kernels = [Kernel(_annotated(function, annotations)) for annotations in choices]


def compiled_for(*choices: dict[str, Any]) -> Callable[[Callable[..., Any]], Variants]:
    """Make kernels of one function for several types of its arguments."""
    return lambda function: Variants(function, choices)


def _annotated(function: Callable[..., Any], annotations: dict[str, Any]) -> Callable[..., Any]:
    """A copy of a function with other types, and a name that says so."""
    assert isinstance(function, FunctionType)
    kinds = map(types.described, annotations.values())
    name = "_".join([function.__name__, *(kind.dtype.name for kind in kinds if not isinstance(kind, types.Group))])
    copy = FunctionType(function.__code__, function.__globals__, name)
    copy.__module__, copy.__doc__ = function.__module__, function.__doc__
    copy.__annotations__ = function.__annotations__ | annotations
    return copy
