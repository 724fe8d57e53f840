"""Reading parquet files, as many rows at a time as fit into memory."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer.storage.remote import display_path, open_file, url_of
from trainer.text.formats import WHOLE, Stretch, listed, too_large
from trainer.text.parquet_pages import largest_pages, row_groups
from trainer.text.utf8 import CorpusError

_BLOCK_BYTES = 1 << 20
_ROWS = 1024  # read together at most
_SHARE_OF_A_PAGE = 4  # of the memory: a page exists compressed, decompressed, and as strings four times as wide


class RowGroups:
    """Where a parquet file can be divided.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def next_place(self, begin: int) -> int | None:
        """The first place at or behind one where a row group begins that is not the first; None if there is none.

        Raises:
            CorpusError: If it is not a parquet file.
        """
        return next((place for place in self._places[1:] if place >= begin), None)

    @cached_property
    def _places(self) -> list[int]:
        with _errors(self._path), open_file(self._path) as file:
            places = [group.place for group in row_groups(file)]
        return places if all(one < other for one, other in pairwise(places)) else []


def parquet_rows(
    path: Path, column: str, label: str | None, memory: int, stretch: Stretch = WHOLE
) -> Iterator[tuple[str, str]]:
    """As `json_rows`, of the columns of a parquet file.

    Raises:
        CorpusError: If it is not a parquet file, lacks one of the columns, has values other than text in the first, or
            takes more memory.
    """
    columns = [*dict.fromkeys([column, label or column])]
    with _open(path) as file:
        _check_columns(path, file.schema_arrow.names, column, label)
        for number, batch in _batches(path, file, columns, memory, stretch):
            labels = [""] * len(batch) if label is None else map(str, batch.column(label).to_pylist())
            for row, (text, value) in enumerate(zip(_values(path, number, column, batch), labels, strict=True), number):
                if not isinstance(text, str):
                    place = f"{display_path(path)}, row {row}, column {column!r}"
                    raise CorpusError(f"{place}: expected text, found {type(text).__name__}")
                yield text, value


def parquet_records(
    path: Path, columns: Sequence[str], memory: int, stretch: Stretch = WHOLE
) -> Iterator[tuple[str, str]]:
    """As `json_lines`: the rows of a parquet file as JSON, with those of the columns that it has.

    Raises:
        CorpusError: If it is not a parquet file, has none of the columns, or takes more memory.
    """
    with _open(path) as file:
        there = file.schema_arrow.names
        found = [column for column in columns if column in there]
        if not found:
            missing = f"none of the columns {listed(columns)} (it has {listed(there)})"
            raise CorpusError(f"{display_path(path)} has {missing}")
        for number, batch in _batches(path, file, found, memory, stretch):
            values = [_values(path, number, column, batch) for column in found]
            for row, row_values in enumerate(zip(*values, strict=True), number):
                record = dict(zip(found, row_values, strict=True))
                yield json.dumps(record, default=str), f"{display_path(path)}, row {row}"


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A `ParquetFile`; turns the errors of reading it into one that names the file."""
    from pyarrow import parquet

    with (
        _errors(path),
        parquet.ParquetFile(
            path if url_of(path) is None else open_file(path), buffer_size=_BLOCK_BYTES, page_checksum_verification=True
        ) as file,
    ):
        yield file


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: damaged pages and names
        raise CorpusError(f"{display_path(path)} cannot be read: {' '.join(str(error).split())}") from None


def _batches(path: Path, file: Any, columns: Sequence[str], memory: int, stretch: Stretch) -> Iterator[tuple[int, Any]]:
    """Batches of rows that fit into memory, each with the number of its first row in the file, from 1 on."""
    groups, sizes = _rows_at_once(path, columns, memory // _SHARE_OF_A_PAGE, stretch)
    number = 1 + sum(file.metadata.row_group(group).num_rows for group in range(next(iter(groups), 0)))
    for group, rows in zip(groups, sizes, strict=True):
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            yield number, batch
            number += len(batch)


def _check_columns(path: Path, there: Sequence[str], column: str, label: str | None) -> None:
    if column not in there:
        raise CorpusError(
            f"{display_path(path)} has no column {column!r} (it has {listed(there)}); name one with --text-field"
        )
    if label is not None and label not in there:
        raise CorpusError(f"{display_path(path)} has no column {label!r} to group by (it has {listed(there)})")


def _rows_at_once(path: Path, columns: Sequence[str], memory: int, stretch: Stretch) -> tuple[list[int], list[int]]:
    """The row groups of a stretch, and how many rows of each fit into so many bytes, whatever their values are."""
    begin, end = stretch
    with open_file(path) as file:
        groups = row_groups(file)
        chosen = [
            number
            for number, (place, _) in enumerate(groups)
            if (not begin or begin <= place) and (end is None or place < end)  # of a whole file all, wherever they are
        ]
        pages = largest_pages(file, columns, [groups[n] for n in chosen])
    if max(pages, default=0) > memory:
        raise too_large(f"{display_path(path)}: a page of the column {columns[0]!r}", f"{max(pages):,}")
    return chosen, [max(1, min(_ROWS, memory // max(1, page))) for page in pages]


def _values(path: Path, number: int, column: str, batch: Any) -> list[Any]:
    try:
        return batch.column(column).to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        rows = f"rows {number:,} to {number + len(batch) - 1:,}"
        raise CorpusError(f"{display_path(path)}, {rows}, column {column!r}: not UTF-8: {error.reason}") from None
