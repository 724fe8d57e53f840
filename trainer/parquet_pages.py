"""The sizes of a parquet file's pages, which decide what memory reading it takes.

A page is unpacked as a whole, and no value is longer than the page that it lies in (a dictionary is a page too), but it
may come any number of times. The footer has sums only, and pyarrow gives nothing else, so the headers are read here:
structs of Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), as
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift defines them.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

_STOP, _TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_SIZES = {_TRUE: 1, _FALSE: 1, _I8: 1, _DOUBLE: 8}  # of what a list or a map holds
_UNPACKED_SIZE, _PACKED_SIZE = 2, 3  # fields of a PageHeader


class PageError(ValueError):
    """Headers that are not those of pages."""


def page_sizes(file: BinaryIO, chunk: Any) -> Iterator[int]:
    """The bytes that each page of a column chunk takes in memory.

    Args:
        file: The parquet file.
        chunk: The chunk's `pyarrow.parquet.ColumnChunkMetaData`.

    Raises:
        PageError: If there are no such pages.
    """
    begin = min(filter(None, (chunk.data_page_offset, chunk.dictionary_page_offset)), default=0)
    file.seek(begin)
    headers = _Headers(file, begin + chunk.total_compressed_size)
    while file.tell() < headers.end:
        sizes = headers.integers()
        packed, unpacked = sizes.get(_PACKED_SIZE, -1), sizes.get(_UNPACKED_SIZE, -1)
        if unpacked < 0:
            raise PageError(f"there is no page at byte {file.tell():,}")
        yield max(packed, unpacked)
        headers.forward(packed)


class _Headers:
    """Structs in a part of a file, read field by field."""

    def __init__(self, file: BinaryIO, end: int):
        self.end = end
        self._file = file

    def integers(self, depth: int = 0) -> dict[int, int]:
        """The 32-bit integers of a struct, by their field's number; the other fields are skipped."""
        found: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else _signed(self._number())
            if head & 15 == _I32:
                found[field] = _signed(self._number())
            elif head & 15 not in {_TRUE, _FALSE}:  # which have no bytes of their own
                self._skip(head & 15, depth + 1)
        return found

    def forward(self, size: int) -> None:
        """Leave out so many bytes."""
        if not 0 <= size <= self.end - self._file.tell():
            raise PageError(f"a page at byte {self._file.tell():,} goes on for {size:,} bytes, which are not there")
        self._file.seek(size, 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > 9:
            raise PageError(f"the header of a page at byte {self._file.tell():,} is nested too deeply")
        if kind in {_I16, _I32, _I64}:
            self._number()
        elif kind == _BINARY:
            self.forward(self._number())
        elif kind == _STRUCT:
            self.integers(depth)
        elif kind in {_LIST, _SET}:
            head = self._byte()
            for _ in range(self._number() if head >> 4 == 15 else head >> 4):
                self._skip(head & 15, depth + 1)
        elif kind == _MAP:
            size = self._number()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, depth + 1)
                self._skip(kinds & 15, depth + 1)
        else:
            self.forward(_SIZES.get(kind, -1))

    def _byte(self) -> int:
        data = self._file.read(1)
        if not data:
            raise PageError("the header of a page is cut off")
        return data[0]

    def _number(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PageError(f"the header of a page at byte {self._file.tell():,} has a number of more than 64 bits")


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
