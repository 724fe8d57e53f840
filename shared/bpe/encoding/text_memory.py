"""The UTF-8 bytes of strings, without a copy.

Python has them at hand for ASCII. For other strings it makes them when they are first asked for, and keeps them as long
as the string (https://docs.python.org/3/c-api/unicode.html#c.PyUnicode_AsUTF8AndSize).
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.bpe.errors import SurrogateError
from shared.bpe.kernels.texts import join_texts, locate_texts
from shared.bpe.vocabulary import encode_utf8

Utf8 = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


class Utf8Texts(NamedTuple):
    """Where texts lie in memory, as long as the strings exist.

    Attributes:
        addresses: Of the first byte of each.
        ends: Where each ends if they are put end to end.
    """

    addresses: Int64s
    ends: Int64s

    def joined(self, buffer: Utf8, slack: int) -> Utf8:
        """The texts end to end; copied to the buffer or, if it is too small, to a new one, where `slack` bytes follow.

        A single one is not copied.
        """
        size = int(self.ends[-1])
        if len(self.ends) == 1:
            return utf8_at(int(self.addresses[0]), size)
        out = buffer if size + slack <= len(buffer) else np.empty(size + slack, np.uint8)
        join_texts(self.addresses, self.ends, out)
        return out


def locate(texts: Sequence[str], first: int = 0) -> Utf8Texts:
    """Where the UTF-8 of texts lies.

    Raises:
        SurrogateError: One holds a lone surrogate; its index is counted from `first`.
    """
    strings = np.frombuffer(np.fromiter(texts, np.object_, len(texts)), np.int64)
    addresses, ends = np.empty((2, len(texts)), np.int64)
    try:
        locate_texts(strings, addresses, ends)
    except UnicodeEncodeError:
        index = int(np.flatnonzero(addresses == 0)[0])
        try:
            encode_utf8(texts[index])
        except SurrogateError as error:
            error.index = first + index
            raise
    return Utf8Texts(addresses, ends)


def utf8_at(address: int, size: int) -> Utf8:
    """So many bytes at an address."""
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address)) if size else np.empty(0, np.uint8)
