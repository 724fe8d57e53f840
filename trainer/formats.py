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


def json_texts(path: Path, open_file: Callable[[], BinaryIO], field: str) -> Iterator[str]:
    """One field of each line of a file of JSON objects; empty lines are left out.

    Raises:
        CorpusError: If a line is no JSON object, or has no text in the field; names the line.
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
            yield text


def parquet_texts(path: Path, column: str) -> Iterator[str]:
    """One column of a parquet file.

    Raises:
        CorpusError: If it is no such file, has no such column, or something else than text in it.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                there = ", ".join(map(repr, file.schema_arrow.names))
                raise CorpusError(f"{path} has no column {column!r}, it has {there}; name one with --text-field")
            for batch in file.iter_batches(columns=[column], batch_size=_ROWS):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str):
                        raise CorpusError(f"{path} holds {type(text).__name__} in the column {column!r}, not text")
                    yield text
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
