"""What kernels that make NumPy arrays call: parts of its C interface.

https://numpy.org/doc/stable/reference/c-api/array.html; `numpy/__multiarray_api.h` has the places in its table.
"""

import ctypes
from functools import cache
from importlib import import_module
from typing import NamedTuple

from shared.kernels.types import int64

_TYPE, _NEW, _SET_BASE = 2, 93, 282

_capsule_content = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_content.argtypes = ctypes.py_object, ctypes.c_char_p
_capsule_content.restype = ctypes.c_void_p


class NumPyApi(NamedTuple):
    """Addresses of PyArray_Type, PyArray_New and PyArray_SetBaseObject, and the bytes that every object begins with."""

    array_type: int64
    new_array: int64
    set_base: int64
    header_bytes: int64


@cache
def numpy_api() -> NumPyApi:
    """Where NumPy has it in this process."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    table = ctypes.cast(_capsule_content(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    return NumPyApi(table[_TYPE] or 0, table[_NEW] or 0, table[_SET_BASE] or 0, object.__basicsize__)
