"""What a vocabulary is learnt from: files of several formats, folders, globs and standard input."""

import glob
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from shared.bpe.corpus import Blocks, MappedFile, Source, Texts
from trainer.corpus import CorpusError, check_signature
from trainer.errors import UsageError

STANDARD_INPUT = (Path("-"), Path("/dev/stdin"))

_BLOCK_BYTES = 1 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TEXT_SUFFIXES = {".txt", ".text", ".md", ".rst"}
_TABLE_SUFFIXES = {".jsonl", ".ndjson", ".parquet"}
_PACKED_SUFFIXES = {".gz", ".zst"}


def open_sources(inputs: Sequence[Path], *, text_field: str, separator: str | None) -> list[Source]:
    """The sources that the command line names.

    Args:
        inputs: Files; folders, whose text files are taken, those of their folders too; globs; or `-`, standard input.
        text_field: The field of JSON lines and the column of parquet files that holds the text.
        separator: A special token to put between documents of such files, so that many of them are read together.

    Raises:
        UsageError: If nothing is named, or what is named is not there.
        CorpusError: If a file may not be read, or is packed in a way that is not known.
    """
    if not inputs:
        raise UsageError("no text files are given; name at least one, a folder, or - for standard input")
    return [_open(path, text_field, separator) for given in inputs for path in _expand(given)]


def total_size(inputs: Sequence[Path]) -> int:
    """The bytes on disk of what the command line names, as far as they are known."""
    return sum(path.stat().st_size for given in inputs for path in _expand(given) if path.is_file())


def parse_size(text: str) -> int:
    """Bytes in a number such as `500M`, `8G` or `1_000_000`; units are powers of 1024.

    Raises:
        UsageError: If it is not such a number.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(number[-1:], 1)
    try:
        size = int(float(number.rstrip("KMGT")) * unit)
    except ValueError:
        size = 0
    if size <= 0:
        raise UsageError(f"{text!r} is not a size; write 500M, 8G or a number of bytes")
    return size


def _expand(given: Path) -> list[Path]:
    if given in STANDARD_INPUT or given.is_file():
        return [given]
    if given.is_dir():
        paths = sorted(path for path in given.rglob("*") if path.is_file() and _is_known(path))
        if not paths:
            known = ", ".join(sorted(_TEXT_SUFFIXES | _TABLE_SUFFIXES))
            raise UsageError(f"the folder {given} holds no text files ({known}, and those packed as .gz or .zst)")
        return paths
    if glob.has_magic(str(given)):
        # Path.glob takes no absolute pattern.
        names = glob.glob(str(given), recursive=True)  # noqa: PTH207
        paths = sorted(path for path in map(Path, names) if path.is_file())
        if paths:
            return paths
        raise UsageError(f"no file matches {given}")
    if given.exists():
        return [given]  # a named pipe, or a device
    raise CorpusError(f"{given} cannot be read: No such file or directory")


def _is_known(path: Path) -> bool:
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in _PACKED_SUFFIXES:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in _TEXT_SUFFIXES | _TABLE_SUFFIXES


def _open(path: Path, text_field: str, separator: str | None) -> Source:
    if path in STANDARD_INPUT:
        return Blocks("standard input", lambda: _blocks(sys.stdin.buffer))
    try:
        with path.open("rb") as file:
            beginning = file.read(4) if path.is_file() else b""
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
    name = path.name.lower()
    unpack = _unpacker(path)
    if name.endswith(".parquet"):
        return Texts(str(path), lambda: _together(_parquet_texts(path, text_field), separator))
    if name.removesuffix(path.suffix if unpack else "").endswith((".jsonl", ".ndjson")):
        lines = unpack or (lambda: path.open("rb"))
        return Texts(str(path), lambda: _together(_json_texts(path, lines, text_field), separator))
    if unpack:
        return Blocks(str(path), lambda: _unpacked(path, unpack))
    check_signature(path, beginning)
    return MappedFile(path) if path.is_file() else Blocks(str(path), lambda: _file_blocks(path))


def _unpacker(path: Path) -> Callable[[], BinaryIO] | None:
    if path.suffix == ".gz":
        return lambda: gzip.open(path, "rb")  # type: ignore[return-value]  # it reads like one
    if path.suffix == ".zst":
        return lambda: _open_zstandard(path)
    return None


def _open_zstandard(path: Path) -> BinaryIO:
    import zstandard

    return io.BufferedReader(zstandard.open(path, "rb"))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_BLOCK_BYTES), b"")


def _file_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _blocks(file)


def _unpacked(path: Path, unpack: Callable[[], BinaryIO]) -> Iterator[bytes]:
    with _packing_errors(path), unpack() as file:
        yield from _blocks(file)


@contextmanager
def _packing_errors(path: Path) -> Iterator[None]:
    """Turn what the packing libraries raise into a message that names the file."""
    import zstandard

    try:
        yield
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise CorpusError(f"{path} cannot be unpacked: {error}") from None


def _json_texts(path: Path, open_file: Callable[[], BinaryIO], field: str) -> Iterator[str]:
    with _packing_errors(path), open_file() as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record: Any = json.loads(line)
            except ValueError as error:
                raise CorpusError(f"{path}, line {number}, is not JSON: {error}") from None
            text = record.get(field) if isinstance(record, dict) else None
            if not isinstance(text, str):
                there = f"it has {', '.join(map(repr, record))}" if isinstance(record, dict) else "it is no object"
                raise CorpusError(
                    f"{path}, line {number}, has no text in the field {field!r} ({there}); name it with --text-field"
                )
            yield text


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                there = ", ".join(map(repr, file.schema_arrow.names))
                raise CorpusError(f"{path} has no column {column!r}, it has {there}; name one with --text-field")
            for batch in file.iter_batches(columns=[column], batch_size=1024):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str):
                        raise CorpusError(f"{path} holds {type(text).__name__} in the column {column!r}, not text")
                    yield text
    except pyarrow.ArrowException as error:
        raise CorpusError(f"{path} cannot be read: {error}") from None


def _together(texts: Iterable[str], separator: str | None) -> Iterator[bytes]:
    """Documents as UTF-8, many at once where something may stand between them that no word crosses."""
    gathered: list[bytes] = []
    size = 0
    for text in texts:
        # A lone surrogate stays wrong, for the counting to find.
        gathered.append(text.encode(errors="surrogatepass"))
        size += len(gathered[-1])
        if separator is None or size >= _BLOCK_BYTES:
            yield (separator or "").encode().join(gathered)
            gathered, size = [], 0
    if gathered:
        yield (separator or "").encode().join(gathered)
