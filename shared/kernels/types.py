"""The types of arguments and results of kernels, described without importing the compiler."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scalar:
    """A number of the machine, by its name in NumPy; `void` is none."""

    name: str

    @property
    def dtype(self) -> "np.dtype[Any]":
        """What NumPy calls it."""
        return np.dtype(self.name)


@dataclass(frozen=True)
class Array:
    """A contiguous array of one dimension; a read-only one may be a memory map or the bytes of a text."""

    element: "Scalar | np.dtype[Any]"
    readonly: bool = False

    @property
    def dtype(self) -> "np.dtype[Any]":
        """What NumPy calls its elements."""
        return self.element.dtype if isinstance(self.element, Scalar) else self.element


@dataclass(frozen=True)
class UniTuple:
    """Several results of one type, of which each has a name."""

    element: Scalar
    names: tuple[str, ...]


@dataclass(frozen=True)
class NamedTuple:
    """Arrays that belong together, passed as one argument."""

    fields: tuple[Array, ...]
    kind: type


Argument = Scalar | Array | NamedTuple
Result = Scalar | UniTuple

void = Scalar("void")
boolean = Scalar("bool")
int8 = Scalar("int8")
uint8 = Scalar("uint8")
uint16 = Scalar("uint16")
int32 = Scalar("int32")
uint32 = Scalar("uint32")
int64 = Scalar("int64")
uint64 = Scalar("uint64")
float32 = Scalar("float32")
float64 = Scalar("float64")

BYTES = Array(uint8, readonly=True)
INT32S = Array(int32)
UINT32S = Array(uint32)
INT64S = Array(int64)
UINT64S = Array(uint64)
FLOAT32S = Array(float32)
FLOAT64S = Array(float64)
