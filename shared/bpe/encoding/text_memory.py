"""The UTF-8 bytes of a string, without a copy where possible."""

import ctypes

import numpy as np
import numpy.typing as npt

from shared.bpe.vocabulary import encode_utf8

# Part of Python's stable interface: https://docs.python.org/3/c-api/unicode.html#c.PyUnicode_AsUTF8AndSize
_as_utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
_as_utf8.argtypes = ctypes.py_object, ctypes.c_void_p
_as_utf8.restype = ctypes.c_void_p


def utf8_of(text: str) -> npt.NDArray[np.uint8]:
    """A text as UTF-8. ASCII is not copied: keep the text as long as the array.

    Raises:
        TokenizerError: As `encode_utf8`.
    """
    if not text or not text.isascii():
        return np.frombuffer(encode_utf8(text), np.uint8)
    return np.ctypeslib.as_array((ctypes.c_ubyte * len(text)).from_address(_as_utf8(text, None)))
