"""Calls of the training step's kernels with torch's tensors, on the threads of torch's own products."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.kernels import object_file
from shared.kernels.compiling import Kernel, Variants
from shared.kernels.types import Array

_DTYPES = (torch.float32, torch.bfloat16)

_ARRAYS = {torch.float32: "float32", torch.bfloat16: "uint16", torch.int64: "int64"}
_SMALLEST_PARALLEL = 1 << 15  # numbers from which torch's own operators use several threads


def has_kernels(x: Tensor) -> bool:
    """Whether there are kernels for a tensor: on a CPU, in float32 or bfloat16."""
    return x.device.type == "cpu" and x.dtype in _DTYPES


def uses_kernels(*tensors: Tensor) -> bool:
    """Whether the compiled kernels compute this: a part of a training step, of whose tensors a gradient is wanted.

    All else, such as evaluation, GPUs and float64, is left to torch's operators.
    """
    return torch.is_grad_enabled() and all(map(has_kernels, tensors)) and any(x.requires_grad for x in tensors)


def run(kernel: Variants, *values: Tensor | float | Sequence[int]) -> None:
    """Run a kernel's variant for the types of these tensors on all threads of torch; the last argument is the counter.

    Args:
        kernel: From `shared.lm.kernels`.
        values: Its arguments: contiguous tensors, numbers, and whole numbers as an array of int64.
    """
    dtypes = tuple(value.dtype for value in values if isinstance(value, Tensor))
    pack, new_frame, address = _variant(kernel, dtypes)
    words: list[float] = []
    arrays = [(ctypes.c_int64 * 1)()]
    size = 0
    for value in values:
        if isinstance(value, Tensor):
            words += (value.data_ptr(), value.numel())
            size = max(size, value.numel())
        elif isinstance(value, bool | int | float):
            words.append(value)
        else:
            arrays.append((ctypes.c_int64 * len(value))(*value))
            words += (ctypes.addressof(arrays[-1]), len(value))
    frame = new_frame()
    pack(frame, 0, *words, ctypes.addressof(arrays[0]), 1)
    threads = torch.get_num_threads() if size >= _SMALLEST_PARALLEL else 1
    start_team = _openmp() if threads > 1 else None
    if start_team is None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(frame))
    else:
        start_team(address, ctypes.addressof(frame), threads, 0)


@cache
def _variant(kernel: Variants, dtypes: tuple[torch.dtype, ...]) -> tuple[Callable[..., None], Any, int]:
    """What packs the arguments of the variant for these types, the class of its frames, and its address."""
    wanted = [_ARRAYS[dtype] for dtype in dtypes]
    for each in kernel.kernels:
        if _tensor_types(each) == wanted:
            return (
                each.argument_words.packer.pack_into,
                each.frame,
                object_file.of(each.package).address_of(each.symbol),
            )
    raise TypeError(f"{kernel.kernels[0].symbol} has no variant for {', '.join(map(str, dtypes))}")


def _tensor_types(kernel: Kernel) -> list[str]:
    """Of the arrays that are given as tensors: not of the counter and of sizes."""
    plain = ("counter", "sizes", "strides", "out_strides")
    return [kind.dtype.name for name, kind in kernel.arguments.items() if isinstance(kind, Array) and name not in plain]


@cache
def _openmp() -> Callable[..., None] | None:
    """OpenMP's function that starts a parallel region, in the library whose threads torch uses.

    None where torch does not use OpenMP, or one without GNU's interface (macOS): kernels then have one thread.
    """
    for library in (None, *Path(torch.__file__).parent.glob("lib/libtorch_cpu.so")):
        try:
            start = ctypes.CDLL(None if library is None else str(library)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        start.restype = None
        return start
    return None
