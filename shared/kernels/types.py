"""The types of kernels' arguments and results, described without importing the compiler.

A kernel is compiled for what its annotations say: the names here, or a NamedTuple class whose fields they annotate. To
mypy they are ordinary numbers and arrays.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scalar:
    """A number of the machine; as a result it may be the address of a Python object."""

    dtype: "np.dtype[Any]"
    is_object: bool = False

    @classmethod
    def named(cls, name: str) -> "Scalar":
        """By its name in NumPy."""
        return cls(np.dtype(name))


@dataclass(frozen=True)
class Array:
    """A contiguous array of one dimension; a read-only one may be a memory map or the bytes of a text."""

    dtype: "np.dtype[Any]"
    readonly: bool = False


@dataclass(frozen=True)
class Group:
    """Values that belong together, passed as one argument: a NamedTuple class, and the type of each field by name."""

    kind: Any
    fields: "dict[str, Argument]"


Argument = Scalar | Array | Group
Result = Scalar | Group | None


def described(annotation: Any) -> Argument:
    """What an annotation stands for.

    Raises:
        TypeError: It is none of those that kernels may have.
    """
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return Group(annotation, {name: described(annotation.__annotations__[name]) for name in annotation._fields})
    for description in getattr(annotation, "__metadata__", ()):
        if isinstance(description, Scalar | Array):
            return description
    raise TypeError(f"{annotation} is no type of a kernel's argument; see shared.kernels.types")


boolean = Annotated[bool, Scalar.named("bool")]
uint8 = Annotated[int, Scalar.named("uint8")]
int32 = Annotated[int, Scalar.named("int32")]
uint32 = Annotated[int, Scalar.named("uint32")]
int64 = Annotated[int, Scalar.named("int64")]
uint64 = Annotated[int, Scalar.named("uint64")]
python_object = Annotated[int, Scalar(np.dtype("int64"), is_object=True)]
float32 = Annotated[float, Scalar.named("float32")]
float64 = Annotated[float, Scalar.named("float64")]

Bytes = Annotated[NDArray[np.uint8], Array(np.dtype("uint8"), readonly=True)]
Uint8Array = Annotated[NDArray[np.uint8], Array(np.dtype("uint8"))]
Uint16Array = Annotated[NDArray[np.uint16], Array(np.dtype("uint16"))]
Int32Array = Annotated[NDArray[np.int32], Array(np.dtype("int32"))]
Uint32Array = Annotated[NDArray[np.uint32], Array(np.dtype("uint32"))]
Int64Array = Annotated[NDArray[np.int64], Array(np.dtype("int64"))]
Uint64Array = Annotated[NDArray[np.uint64], Array(np.dtype("uint64"))]
Float32Array = Annotated[NDArray[np.float32], Array(np.dtype("float32"))]
Float64Array = Annotated[NDArray[np.float64], Array(np.dtype("float64"))]
