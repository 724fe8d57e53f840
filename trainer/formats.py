"""Reading what text comes in beside plain files: packed files, JSON lines and parquet."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trainer.corpus import CorpusError

_BLOCK_BYTES = 1 << 20
_ROWS = 1024  # of a parquet file that are read together


def unpacker(path: Path) -> Callable[[], BinaryIO] | None:
    """What opens a packed file as what is in it; None for a file that is not packed, by its name."""
    if path.suffix == ".gz":
        return lambda: gzip.open(path, "rb")  # type: ignore[return-value]  # it reads like one
    if path.suffix == ".zst":
        return lambda: _open_zstandard(path)
    return None


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open file."""
    return iter(lambda: file.read(_BLOCK_BYTES), b"")


def file_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a pipe or a device."""
    with path.open("rb") as file:
        yield from blocks(file)


def unpacked_blocks(path: Path, unpack: Callable[[], BinaryIO]) -> Iterator[bytes]:
    """The bytes in a packed file.

    Raises:
        CorpusError: If it is not packed as its name says, or is cut off.
    """
    with _packing_errors(path), unpack() as file:
        yield from blocks(file)


def json_rows(
    path: Path, open_file: Callable[[], BinaryIO], field: str, label: str | None
) -> Iterator[tuple[str, str]]:
    """A text field, and another one to group by, of each line of a file of JSON objects; empty lines are left out.

    Args:
        path: What errors call it.
        open_file: Opens it, unpacked.
        field: The text's field.
        label: The other field, whose value is given as text; empty if None.

    Raises:
        CorpusError: If a line is no JSON object, or lacks one of the fields; names the line.
    """
    with _packing_errors(path), open_file() as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{path}, line {number}, is not JSON: {error}") from None
            text = record.get(field) if isinstance(record, dict) else None
            if not isinstance(text, str):
                there = f"it has {', '.join(map(repr, record))}" if isinstance(record, dict) else "it is no object"
                raise CorpusError(
                    f"{path}, line {number}, has no text in the field {field!r} ({there}); name it with --text-field"
                )
            if label is not None and label not in record:
                there = ", ".join(map(repr, record))
                raise CorpusError(f"{path}, line {number}, has no field {label!r} to group by (it has {there})")
            yield text, "" if label is None else str(record[label])


def parquet_rows(path: Path, column: str, label: str | None) -> Iterator[tuple[str, str]]:
    """As `json_rows`, of the columns of a parquet file.

    Raises:
        CorpusError: If it is no such file, lacks one of the columns, or has something else than text in the first.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                there = ", ".join(map(repr, file.schema_arrow.names))
                raise CorpusError(f"{path} has no column {column!r}, it has {there}; name one with --text-field")
            if label is not None and label not in file.schema_arrow.names:
                there = ", ".join(map(repr, file.schema_arrow.names))
                raise CorpusError(f"{path} has no column {label!r} to group by, it has {there}")
            columns = [*dict.fromkeys([column, label or column])]
            for batch in file.iter_batches(columns=columns, batch_size=_ROWS):
                labels = [""] * len(batch) if label is None else map(str, batch.column(label).to_pylist())
                for text, group in zip(batch.column(column).to_pylist(), labels, strict=True):
                    if not isinstance(text, str):
                        raise CorpusError(f"{path} holds {type(text).__name__} in the column {column!r}, not text")
                    yield text, group
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from None


def _open_zstandard(path: Path) -> BinaryIO:
    import zstandard

    return io.BufferedReader(zstandard.open(path, "rb"))


@contextmanager
def _packing_errors(path: Path) -> Iterator[None]:
    """Turn what the packing libraries raise into a message that names the file."""
    import zstandard

    try:
        yield
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise CorpusError(f"{path} cannot be unpacked: {error}") from None
