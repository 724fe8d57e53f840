"""Kernels: functions that Numba compiles for one signature, and how Python calls them.

A kernel runs without the interpreter lock. Its machine code comes from the object file of its package, so that a
process which finds it there never imports the compiler. Numbers, addresses and lengths are handed over in one array of
words, in the order of the arguments, and results come back behind them; a float is the word with its bits:

    words    a number | address of an array | its length | ... | result | ...

Called by another kernel, a kernel is an ordinary function of the compiled code. No index of an array in a kernel may be
negative: there it would not count from the end.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from functools import cached_property, partial, update_wrapper
from typing import Any

import numpy as np

from shared.kernels import object_file, types

_WORD_MASK = (1 << 64) - 1
_FLOATS = {"float32": (struct.Struct("<f"), 4), "float64": (struct.Struct("<d"), 8)}


class Kernel:
    """A function with the signature that it is compiled for.

    Args:
        function: In the part of Python that Numba compiles.
        result: What it returns.
        arguments: What it takes.
        inline: Whether it is always put into its callers.
    """

    def __init__(
        self, function: Callable[..., Any], result: types.Result, arguments: tuple[types.Argument, ...], *, inline: bool
    ):
        update_wrapper(self, function)
        self.function = function
        self.result = result
        self.arguments = arguments
        self.inline = inline
        self.package = function.__module__.rpartition(".")[0]
        self.symbol = f"{function.__module__}.{function.__name__}"

    def __call__(self, *values: Any) -> Any:
        """Run it.

        Raises:
            TypeError: If an argument is not what the signature says.
        """
        return self.prepare(*values).run()

    def prepare(self, *values: Any) -> "Call":
        """A call that can be run again and again, for what is too short to look at its arguments each time."""
        words = [word for value, kind in zip(values, self.arguments, strict=True) for word in self._words(value, kind)]
        return Call(self, words, values)

    @cached_property
    def machine_code(self) -> Callable[[Any], None]:
        """What runs, loaded when it is first needed."""
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        return prototype(object_file.of(self.package).address_of(self.symbol))

    def _words(self, value: Any, kind: types.Argument) -> Iterator[int]:
        if isinstance(kind, types.NamedTuple):
            for field, field_kind in zip(value, kind.fields, strict=True):
                yield from self._words(field, field_kind)
        elif isinstance(kind, types.Scalar):
            yield _bits_of(float(value), kind) if kind.name in _FLOATS else int(value)
        else:
            is_fit = isinstance(value, np.ndarray) and value.dtype == kind.dtype and value.flags.c_contiguous
            if not is_fit or not (kind.readonly or value.flags.writeable):
                found = f"{value.dtype}, {value.flags}" if isinstance(value, np.ndarray) else type(value).__name__
                raise TypeError(f"{self.symbol} takes a contiguous array of {kind.dtype}, not {found}")
            yield value.ctypes.data
            yield value.size


class Call:
    """The words of one call.

    Attributes:
        words: The arguments, which may be changed between two runs, and the results.
        num_arguments: The words that are arguments.
    """

    def __init__(self, kernel: Kernel, words: list[int], values: tuple[Any, ...]):
        self.num_arguments = len(words)
        self._result = kernel.result
        self._values = values  # kept alive: the words are addresses of them
        num_results = self._result.count if isinstance(self._result, types.UniTuple) else 1
        self.words = (ctypes.c_int64 * (len(words) + num_results))(*words)
        self.run_only = partial(kernel.machine_code, self.words)

    def run(self) -> Any:
        """The results."""
        self.run_only()
        if isinstance(self._result, types.UniTuple):
            return tuple(_as_python(word, self._result.element) for word in self.words[self.num_arguments :])
        return _as_python(self.words[self.num_arguments], self._result)


def compiled(
    result: types.Result, *arguments: types.Argument, inline: bool = False
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a function.

    Args:
        result: What it returns.
        arguments: What it takes.
        inline: Put it into its callers whatever LLVM thinks of its size: a call hands over seven values for each array.
    """
    return lambda function: Kernel(function, result, arguments, inline=inline)


def _as_python(word: int, kind: types.Scalar) -> Any:
    if kind == types.void:
        return None
    if kind == types.boolean:
        return bool(word)
    if kind.name in _FLOATS:
        layout, size = _FLOATS[kind.name]
        return layout.unpack((word & _WORD_MASK).to_bytes(8, "little")[:size])[0]
    return word if kind == types.int64 else word & _WORD_MASK


def _bits_of(value: float, kind: types.Scalar) -> int:
    return int.from_bytes(_FLOATS[kind.name][0].pack(value), "little")
