"""What the compiler knows of a kernel."""

from collections.abc import Callable
from typing import Any

from shared.kernels import types


class KernelFunction:
    """A function with the signature that it is compiled for.

    Args:
        function: In the subset of Python that Numba compiles.
        result: What it returns.
        arguments: What it takes.
        inline: Whether it is always inlined into its callers.
    """

    def __init__(
        self, function: Callable[..., Any], result: types.Result, arguments: tuple[types.Argument, ...], *, inline: bool
    ):
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.function = function
        self.result = result
        self.arguments = arguments
        self.inline = inline
        self.package = function.__module__.rpartition(".")[0]
        self.symbol = f"{function.__module__}.{function.__name__}"
