"""What the compiler knows of a kernel."""

from collections.abc import Callable
from typing import Any

from shared.kernels import types


class KernelFunction:
    """A function that is compiled for what its annotations say.

    Args:
        function: In the subset of Python that Numba compiles; its annotations are those of `shared.kernels.types`.
        inline: Whether it is always inlined into its callers.
        has_entry: Whether Python may call it.
        calls_python: Whether it calls Python's C interface, and so needs the interpreter lock.

    Attributes:
        arguments: The types of its arguments by name.
        result: The type of what it returns; several numbers are a NamedTuple.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        inline: bool = False,
        has_entry: bool = True,
        calls_python: bool = False,
    ):
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.function = function
        self.inline = inline
        self.has_entry = has_entry
        self.calls_python = calls_python
        self.package = function.__module__.rpartition(".")[0]
        self.symbol = f"{function.__module__}.{function.__name__}"
        annotations = dict(function.__annotations__)
        result = annotations.pop("return")
        self.arguments = {name: types.described(annotation) for name, annotation in annotations.items()}
        self.result = None if result is None else types.described(result)
