r"""Arrays of token ids that other programs wrote: .npy files and flat binary files, read a part at a time.

They are read by offset and never mapped, and nothing in them is unpickled.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from shared.bpe.training import changed, version_of
from shared.system.regular_file import open_regular
from trainer.errors import UsageError
from trainer.tokens.token_file import TokenFileError

AnyIds = npt.NDArray[np.integer[Any]]

_BLOCK_IDS = 1 << 20
_SUFFIXES = (".npy", ".bin")
_ENOUGH = 1024  # numbers that show whether they are halves of wider ones
_LARGEST_HALF = 32  # the upper 16 bits of the largest id that vocabularies may have
# The first int32 of a token file of llm.c (dev/data/data_common.py), whose header has 256 of them.
_LLM_C = (20240520, 20240801)
_LLM_C_HEADER = 1024


@dataclass(frozen=True)
class TokenArray:
    """A one-dimensional array of whole numbers in a file.

    Attributes:
        path: The file.
        dtype: Of the numbers, with their byte order.
        offset: Bytes before the first number.
        count: How many there are.
        version: As in `version_of`, when it was opened.
    """

    path: Path
    dtype: "np.dtype[np.integer[Any]]"
    offset: int
    count: int
    version: str

    @classmethod
    def open(cls, path: Path, dtype: str | None) -> "TokenArray":
        """Open a file. It is an .npy file if it begins as one, whatever its name.

        Args:
            path: The file, named .npy or .bin.
            dtype: Such as uint16, or >u2 where its bytes are swapped; must be given for a flat file.

        Raises:
            UsageError: The name, or the dtype, is none of these; or the dtype is missing, or not that of the .npy file.
            TokenFileError: The file cannot be read, is damaged or empty, or is no flat array of whole numbers.
        """
        wanted = None if dtype is None else _parsed(dtype)
        if path.suffix not in _SUFFIXES:
            raise UsageError(
                f"{path}: expected an array of token ids named .npy or .bin (for text, leave the option out)"
            )
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    raise TokenFileError(f"{path} is empty: it has 0 bytes")
                beginning = file.read(len(npy.MAGIC_PREFIX))
                file.seek(0)
                if beginning == npy.MAGIC_PREFIX:
                    found, shape = _npy_header(path, file)
                    _check_npy(path, found, shape, wanted)
                else:
                    found, shape = _flat(path, file, size, wanted)
                offset = file.tell()
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror or error}") from None
        [count] = shape
        if offset + count * found.itemsize != size:
            raise TokenFileError(
                f"{path} has {size - offset:,} bytes after its header, but {count:,} numbers of {found.itemsize} bytes "
                "are announced there: it was cut off, or something was added to it"
            )
        if not count:
            raise TokenFileError(f"{path} is empty: its array has no numbers")
        return cls(path, found, offset, count, version_of(path))

    def header(self) -> bytes:
        """What is before the numbers."""
        with open_regular(self.path) as file:
            return file.read(self.offset)

    def blocks(self) -> Iterator[AnyIds]:
        """The numbers, about a million at a time.

        Raises:
            SourceError: The file was written to meanwhile.
            OSError: It cannot be read.
        """
        with open_regular(self.path) as file:
            file.seek(self.offset)
            for begin in range(0, self.count, _BLOCK_IDS):
                wanted = min(_BLOCK_IDS, self.count - begin) * self.dtype.itemsize
                data = file.read(wanted)
                if len(data) < wanted:
                    break
                yield np.frombuffer(data, self.dtype)
        if version_of(self.path) != self.version:
            raise changed(str(self.path))


def _parsed(text: str) -> "np.dtype[np.integer[Any]]":
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(np.void)
    if dtype.kind not in "iu":
        raise UsageError(
            f"--dtype {text!r} is not a type of whole numbers; use uint16, uint32, int32 or int64, or with swapped "
            "bytes (big-endian) '>u2', '>u4', '>i4' or '>i8'"
        )
    return dtype.newbyteorder("<") if dtype.byteorder == "=" else dtype


def _npy_header(path: Path, file: BinaryIO) -> "tuple[np.dtype[Any], tuple[int, ...]]":
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:  # 3.0 is for names of fields, which ids have not
            raise TokenFileError(
                f"{path}: version {version[0]}.{version[1]} of .npy is not for arrays of whole numbers"
            )
        with warnings.catch_warnings(action="ignore"):  # of files that Python 2 wrote
            shape, _, dtype = read(file)
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError):
        raise TokenFileError(f"{path} is a damaged .npy file: its header cannot be read") from None
    return dtype, shape


def _check_npy(
    path: Path, dtype: "np.dtype[Any]", shape: tuple[int, ...], wanted: "np.dtype[np.integer[Any]] | None"
) -> None:
    if dtype.hasobject:
        raise TokenFileError(
            f"{path} contains pickled Python objects, which are never loaded, since they could run code; save the ids "
            "with np.save(FILE, np.array(ids, dtype=np.uint16))"
        )
    if dtype.kind not in "iu":
        raise TokenFileError(
            f"{path} contains values of type {dtype.name}, and token ids are whole numbers; if they are ids, save "
            "array.astype(np.uint32)"
        )
    if len(shape) != 1:
        raise TokenFileError(
            f"{path} has the shape {shape}; token ids are one row of numbers: save array.reshape(-1), without padding"
        )
    if wanted is not None and wanted != dtype:
        raise UsageError(f"{path} says that its numbers are {dtype.str}, not {wanted.str}; leave out --dtype")


def _flat(
    path: Path, file: BinaryIO, size: int, dtype: "np.dtype[np.integer[Any]] | None"
) -> "tuple[np.dtype[np.integer[Any]], tuple[int, ...]]":
    """The same of a file without a header."""
    if dtype is None:
        raise UsageError(
            f"{path} has no header that says what its numbers are; name their type, such as --dtype uint16"
        )
    if int.from_bytes(file.read(4), "little") in _LLM_C:
        raise TokenFileError(
            f"{path} has a header of {_LLM_C_HEADER} bytes, as llm.c writes it; cut it off: "
            f"tail -c +{_LLM_C_HEADER + 1} {path.name} > train.bin"
        )
    file.seek(0)
    if size % dtype.itemsize:
        raise TokenFileError(
            f"{path} has {size:,} bytes, not a multiple of {dtype.itemsize} as {dtype.name} needs: it was cut off, or "
            "--dtype is another one"
        )
    first = np.frombuffer(file.read(_BLOCK_IDS * dtype.itemsize), dtype)
    file.seek(0)
    if _are_halves(first):
        raise TokenFileError(
            f"{path}: every second number is almost 0, so that they seem to have more bytes than {dtype.name}: name "
            "another --dtype"
        )
    return dtype, (size // dtype.itemsize,)


def _are_halves(ids: AnyIds) -> bool:
    """Whether every second number seems to be the upper half of one with more bytes: all of them would be valid ids."""
    upper, lower = (ids[::2], ids[1::2]) if ids.dtype.str[0] == ">" else (ids[1::2], ids[::2])
    largest = _LARGEST_HALF if ids.itemsize <= 2 else 0
    return len(ids) >= _ENOUGH and ids.itemsize < 8 and bool(upper.max() <= largest < lower.max())
