"""The sizes of a parquet file's pages, which decide what memory reading it takes.

A page is decompressed as a whole, and no value is longer than the page that it is in (a dictionary is a page too), but
it may occur any number of times. pyarrow exposes only the sums in the footer, and aborts the process where a footer is
damaged, so footer and headers are read here: structs of Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), as
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift defines them.
"""

import io
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

_STOP, _TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_TAIL_BYTES = 8  # of the file: the footer's size, and "PAR1"
# The numbers of fields.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _CHUNK_BYTES, _FIRST_DATA_PAGE, _DICTIONARY_PAGE = 3, 7, 9, 11
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3


class PageError(ValueError):
    """A footer or page header that is not valid in a parquet file."""


class RowGroup(NamedTuple):
    """A row group.

    Attributes:
        place: Where its first page is.
        columns: The meta data of its columns.
    """

    place: int
    columns: list[dict[int, Any]]


def row_groups(file: BinaryIO) -> list[RowGroup]:
    """The row groups, in order.

    Raises:
        PageError: If the footer is damaged.
    """
    file.seek(-_TAIL_BYTES, os.SEEK_END)
    size = int.from_bytes(file.read(4), "little")
    file.seek(-_TAIL_BYTES - size, os.SEEK_END)
    footer = _Thrift(io.BytesIO(file.read(size)), size)
    with _damage_errors():
        groups = [[column[_META_DATA] for column in group[_COLUMNS]] for group in footer.struct()[_ROW_GROUPS]]
        return [RowGroup(min(map(_first_page, columns), default=0), columns) for columns in groups]


def largest_pages(file: BinaryIO, columns: Collection[str], groups: Sequence[RowGroup]) -> list[int]:
    """For each of these row groups, the most bytes that one page of each of the columns takes in memory.

    Raises:
        PageError: If a page header is damaged.
    """
    with _damage_errors():
        return [
            sum(max(_page_sizes(file, chunk), default=0) for chunk in group.columns if _is_of(chunk[_PATH], columns))
            for group in groups
        ]


@contextmanager
def _damage_errors() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise PageError(f"its footer or the header of a page is damaged: {error!r}") from None


def _first_page(chunk: dict[int, Any]) -> int:
    return min(filter(None, (chunk[_FIRST_DATA_PAGE], chunk.get(_DICTIONARY_PAGE))), default=0)


def _is_of(path: list[bytes], columns: Collection[str]) -> bool:
    joined = b".".join(path).decode(errors="replace") + "."
    return any(joined.startswith(f"{column}.") for column in columns)


def _page_sizes(file: BinaryIO, chunk: dict[int, Any]) -> Iterator[int]:
    begin = _first_page(chunk)
    file.seek(begin)
    thrift = _Thrift(file, begin + chunk[_CHUNK_BYTES])
    while file.tell() < thrift.end:
        header = thrift.struct()
        yield max(header[_COMPRESSED_SIZE], header[_UNCOMPRESSED_SIZE])
        file.seek(thrift.checked(header[_COMPRESSED_SIZE]), os.SEEK_CUR)


class _Thrift:
    """Reads the values in a part of a file, one after the other."""

    def __init__(self, file: BinaryIO, end: int):
        self.end = end
        self._file = file

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """A struct, by the numbers of its fields."""
        fields: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else _signed(self._number())
            kind = head & 15
            fields[field] = kind == _TRUE if kind in {_TRUE, _FALSE} else self._value(kind, depth)
        return fields

    def checked(self, size: int) -> int:
        """A size, checked against the bytes that are left."""
        if not 0 <= size <= self.end - self._file.tell():
            raise PageError(
                f"its footer or the header of a page is damaged: it needs {size:,} more bytes than the file has"
            )
        return size

    def _value(self, kind: int, depth: int) -> Any:  # noqa: PLR0911  # one for each kind
        if depth > 9:
            raise PageError("its footer or the header of a page is nested too deeply")
        if kind in {_I16, _I32, _I64}:
            return _signed(self._number())
        if kind == _BINARY:
            return self._file.read(self.checked(self._number()))
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in {_LIST, _SET}:
            head = self._byte()
            size = self._number() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == _MAP:
            size = self._number()
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(size)]
        if kind in {_TRUE, _FALSE, _I8}:  # within a list
            return self._byte()
        if kind == _DOUBLE:
            return self._file.read(self.checked(8))
        raise PageError(f"its footer or the header of a page is damaged: unknown type {kind}")

    def _byte(self) -> int:
        return self._file.read(self.checked(1))[0]

    def _number(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PageError("its footer or the header of a page is damaged: a varint has more than 64 bits")


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
