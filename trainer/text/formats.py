"""Reading compressed files and JSON lines."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trainer.storage.remote import display_path, open_file, url_of
from trainer.text.sizes import size_of
from trainer.text.utf8 import CorpusError

_BLOCK_BYTES = 1 << 20
# The most memory that json.loads takes, the line included: per byte of it (ASCII text with one emoji), and per value.
_MEMORY_PER_BYTE, _MEMORY_PER_VALUE = 9, 100
_NAMES_SHOWN = 20

Stretch = tuple[int, int | None]
"""The records that begin between two places of a file, to its end if the second is None."""

WHOLE: Stretch = (0, None)


def decompressor(path: Path) -> Callable[[], BinaryIO] | None:
    """A function that opens a compressed file for reading its content; None for other files, judged by the name."""
    if path.suffix == ".gz":
        return lambda: gzip.open(path if url_of(path) is None else open_file(path), "rb")  # type: ignore[return-value]  # it reads like one
    if path.suffix == ".zst":
        return lambda: _open_zstandard(path)
    return None


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open file."""
    return iter(lambda: file.read(_BLOCK_BYTES), b"")


def file_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a pipe or a device."""
    with open_file(path) as file:
        yield from blocks(file)


def decompressed_blocks(path: Path, decompress: Callable[[], BinaryIO]) -> Iterator[bytes]:
    """The decompressed bytes of a file, all of its frames or members.

    Raises:
        CorpusError: If it is not in the format that its name says, is truncated, or has other data at its end.
    """
    with _decompression_errors(path), decompress() as file:
        yield from blocks(file)


def json_rows(
    path: Path, open_file: Callable[[], BinaryIO], field: str, label: str | None, memory: int, *, begin: int = 0
) -> Iterator[tuple[str, str]]:
    """A text field, and another one to group by, of each line of a file of JSON objects; empty lines are skipped.

    Args:
        path: For error messages.
        open_file: Opens it, decompressed, or a stretch of it.
        field: The text's field.
        label: The other field, whose value is returned as a string; empty if None.
        memory: Bytes that reading a line may take.
        begin: Where in the file the stretch begins.

    Raises:
        CorpusError: If a line is not a JSON object, lacks one of the fields, or takes more memory; names the line.
    """
    for line, place in json_lines(path, open_file, memory, begin):
        record = parse_json(line, place)
        text = record.get(field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            there = f"it has {listed(record)}" if isinstance(record, dict) else "expected an object"
            raise CorpusError(f"{place}, has no text in the field {field!r} ({there}); name it with --text-field")
        if label is not None and label not in record:
            raise CorpusError(f"{place}, has no field {label!r} to group by (it has {listed(record)})")
        yield text, "" if label is None else str(record[label])


def json_lines(path: Path, open_file: Callable[[], BinaryIO], memory: int, begin: int = 0) -> Iterator[tuple[str, str]]:
    """Each line of a file of JSON objects, and which line it is; empty lines and a byte order mark are skipped.

    Raises:
        CorpusError: If a line is not UTF-8, or takes more memory; names the line.
    """
    name = stretch_name(path, begin)
    with _decompression_errors(path), open_file() as file:
        for number, line in enumerate(_lines(name, file, memory), start=1):
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 and not begin else "utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{name}, line {number}, is not UTF-8: {error.reason} at byte {error.start}"
                ) from None
            yield text, f"{name}, line {number}"


def stretch_name(path: Path, begin: int) -> str:
    """How messages call what follows a place in a file."""
    return f"{display_path(path)} from byte {begin:,}" if begin else display_path(path)


def parse_json(text: str, place: str) -> Any:
    """A value of JSON.

    Raises:
        CorpusError: If it is none; names the place.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}, is not JSON: {error}") from None


def too_large(what: str, size: str) -> CorpusError:
    """The error for a part of a file that does not fit into the memory that reading may take."""
    return CorpusError(
        f"{what} has {size} bytes, which must be in memory at once and do not fit into the memory limit; raise it "
        "(--memory-limit), or remove what is not text"
    )


def _lines(name: str, file: BinaryIO, memory: int) -> Iterator[bytes]:
    longest = memory // _MEMORY_PER_BYTE
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise too_large(f"{name}, line {number},", f"more than {longest:,}")
        if len(line) * _MEMORY_PER_VALUE > memory:
            values = sum(map(line.count, (b",", b"[", b"{")))
            if len(line) * _MEMORY_PER_BYTE + values * _MEMORY_PER_VALUE > memory:
                raise too_large(f"{name}, line {number},", f"{len(line):,}")
        yield line


def listed(names: Iterable[str]) -> str:
    """The first of the names, shortened for a message."""
    shown = [repr(name[:_NAMES_SHOWN]) for name in islice(names, _NAMES_SHOWN + 1)]
    return ", ".join(shown[:_NAMES_SHOWN] + ["…"] * (len(shown) > _NAMES_SHOWN)) or "none"


def _open_zstandard(path: Path) -> BinaryIO:
    # Not the zstandard package: at the end of its input it does not report whether a frame was complete.
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(path if url_of(path) is None else open_file(path), "zstd"))


@contextmanager
def _decompression_errors(path: Path) -> Iterator[None]:
    """Turn the exceptions of the compression libraries into an error that names the file."""
    advice = "it is truncated or damaged, or not in the format that its name says"
    if decompressor(path) and not size_of(path):  # which the libraries accept as compressed nothing
        raise CorpusError(f"{display_path(path)} cannot be decompressed: it has 0 bytes; {advice}")
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(f"{display_path(path)} cannot be decompressed: {reason}; {advice}") from None
