"""The text that the command line names: files of several formats, directories, globs and standard input."""

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from shared.bpe.training import Blocks, Source, TextFile, Texts, changed, version_of
from trainer.errors import UsageError
from trainer.storage.remote import display_path, find, local_path, open_file, size_and_version, url_of
from trainer.text.batches import TEXT_BYTES
from trainer.text.formats import (
    WHOLE,
    Stretch,
    blocks,
    decompressed_blocks,
    decompressor,
    file_blocks,
    json_lines,
    json_rows,
    stretch_name,
)
from trainer.text.parquet import RowGroups, parquet_records, parquet_rows
from trainer.text.remote_text import RemoteText
from trainer.text.sizes import size_of
from trainer.text.stretches import open_stretch
from trainer.text.utf8 import CorpusError, check_signature

T = TypeVar("T")

STANDARD_INPUT = (Path("-"), Path("/dev/stdin"))

_BLOCK_BYTES = 1 << 20
# What reading a record may always take: pages of a parquet file are some megabytes.
_LEAST_MEMORY = 32 << 20
_TEXT_SUFFIXES = {".txt", ".text", ".md", ".rst"}
_RECORD_SUFFIXES = {".jsonl", ".ndjson", ".parquet"}
_COMPRESSED_SUFFIXES = {".gz", ".zst"}


@dataclass(frozen=True)
class Records:
    """A file of records, each with the text of one document, or a stretch of one.

    Attributes:
        path: The file.
        version: As in `Source`.
        read_rows: Takes what `rows` does, and the stretch.
        boundaries: Where it can be divided: where lines of a text end, or where row groups begin; None for nowhere.
        stretch: What is read.
    """

    path: Path
    version: str
    read_rows: Callable[[str | None, int, Stretch], Iterator[tuple[str, str]]]
    boundaries: TextFile | RowGroups | None = None
    stretch: Stretch = WHOLE

    @property
    def name(self) -> str:
        """For error messages."""
        return stretch_name(self.path, self.stretch[0])

    def rows(self, label: str | None, memory: int) -> Iterator[tuple[str, str]]:
        """The texts, from the first one on, each with the value of another field if one is named.

        Args:
            label: The field.
            memory: Bytes that reading a record may take.
        """
        return _unchanged(self.path, self.version, self.read_rows(label, max(memory, _LEAST_MEMORY), self.stretch))

    def read(self, memory: int) -> Iterator[str]:
        """The texts, from the first one on."""
        return (text for text, _ in self.rows(None, memory))


@dataclass(frozen=True)
class Input:
    """Something that text is read from.

    Attributes:
        path: As it was given, or as it was found in a directory.
        content: How it is read.
        is_plain: Whether the bytes of the file are those of the text.
    """

    path: Path
    content: Source | Records
    is_plain: bool = False


def open_inputs(named: Sequence[Path], *, text_field: str) -> list[Input]:
    """The inputs that the command line names.

    Args:
        named: Files; directories, whose text files are taken, recursively; globs; or `-`, standard input.
        text_field: The field of JSON lines and the column of parquet files that holds the text.

    Raises:
        UsageError: If nothing is named, or no file matches.
        CorpusError: If a file does not exist, cannot be read, or is compressed in an unknown way.
    """
    if not named:
        raise UsageError("no text files are given; name at least one file, a directory, or - for standard input")
    return [open_input(path, text_field=text_field) for given in named for path in expand(given)]


def open_records(named: Sequence[Path], columns: Sequence[str]) -> list[Input]:
    """Files of records that are read as a whole: each as JSON, with its place in the file as the other field.

    Args:
        named: As in `open_inputs`, without standard input and files of text.
        columns: What is read of a parquet file, as far as it is there.

    Raises:
        UsageError: If nothing is named, no file matches, or a file is not of records.
        CorpusError: If a file does not exist or cannot be read.
    """
    if not named:
        raise UsageError("no files are given; name at least one file of JSON lines or parquet")
    return [_open_records(path, columns) for given in named for path in expand(given)]


def _open_records(path: Path, columns: Sequence[str]) -> Input:
    form, decompress = _record_form(path)
    if form is None or not _is_file(path):
        raise UsageError(
            f"{display_path(path)} is not a file of records: name {', '.join(sorted(_RECORD_SUFFIXES))}, or .jsonl.gz "
            "and .jsonl.zst (of a .json file that is a list, jq -c '.[]' makes JSON lines)"
        )
    if form == "parquet":
        return _parquet(path, lambda _, memory, stretch: parquet_records(path, columns, memory, stretch))
    return _json(path, decompress, lambda file, _, memory, begin: json_lines(path, file, memory, begin))


def open_sources(named: Sequence[Path], *, text_field: str, separator: str | None) -> list[Source]:
    """`open_inputs` where the boundaries of records do not matter.

    Args:
        named: As in `open_inputs`.
        text_field: As in `open_inputs`.
        separator: A special token to put between records, so that many of them are read together.
    """
    contents = [given.content for given in open_inputs(named, text_field=text_field)]
    return [RecordTexts(content, separator) if isinstance(content, Records) else content for content in contents]


def total_size(named: Sequence[Path]) -> int | None:
    """The bytes of text that the command line names; None if they are known only after reading."""
    paths = [path for given in named for path in expand(given)]
    return sum(map(size_of, paths)) if all(_is_file(path) and _is_plain(path) for path in paths) else None


def size_on_disk(named: Sequence[Path]) -> int:
    """The bytes of the files that the command line names."""
    return sum(size_of(path) for given in named for path in expand(given))


def expand(given: Path) -> list[Path]:
    """The files that an argument stands for.

    Raises:
        UsageError: If a directory or a glob has none.
        CorpusError: If it does not exist or cannot be read.
    """
    given = local_path(given)
    if url_of(given) is not None:
        return _expand_remote(given)
    if given in STANDARD_INPUT or given.is_file():
        return [given]
    if given.is_dir():
        paths = sorted(path for path in _files_in(given) if path.is_file() and is_known(path))
        if not paths:
            known = ", ".join(sorted(_TEXT_SUFFIXES | _RECORD_SUFFIXES))
            raise UsageError(
                f"the directory {given} contains no text files ({known}, plain or compressed as .gz or .zst)"
            )
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


def _expand_remote(given: Path) -> list[Path]:
    try:
        paths = find(given)
    except OSError as error:
        raise CorpusError(f"{display_path(given)} cannot be read: {error.strerror}") from None
    if paths == [given]:
        return paths
    found = paths if glob.has_magic(str(given)) else [path for path in paths if is_known(path)]
    if not found:
        raise CorpusError(f"{display_path(given)} cannot be read: there is no such file, nor a text file below it")
    return found


def _is_file(path: Path) -> bool:
    return url_of(path) is not None or path.is_file()


def _version(path: Path) -> str:
    return version_of(path) if url_of(path) is None else size_and_version(path)[1]


def _files_in(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise CorpusError(f"{error.filename} cannot be read: {error.strerror}")

    for path, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(path, name) for name in names)


def is_known(path: Path) -> bool:
    """Whether the name of a file says that it is text or records, packed or not."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in _COMPRESSED_SUFFIXES:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in _TEXT_SUFFIXES | _RECORD_SUFFIXES


def _is_plain(path: Path) -> bool:
    return path.suffix.lower() not in _COMPRESSED_SUFFIXES | _RECORD_SUFFIXES


def open_input(path: Path, *, text_field: str) -> Input:
    """As `open_inputs`, of a file that `expand` has found."""
    if path in STANDARD_INPUT:
        return Input(path, Blocks("standard input", lambda: blocks(sys.stdin.buffer)), is_plain=True)
    if not _is_file(path):
        return Input(path, Blocks(str(path), lambda: file_blocks(path)), is_plain=True)
    try:
        with open_file(path) as file:
            beginning = file.read(8)
        (form, decompress), version = _record_form(path), _version(path)
    except OSError as error:
        raise CorpusError(f"{display_path(path)} cannot be read: {error.strerror}") from None
    if form == "parquet":
        return _parquet(path, lambda *args: parquet_rows(path, text_field, *args))
    if form == "json":
        return _json(
            path,
            decompress,
            lambda file, label, memory, begin: json_rows(path, file, text_field, label, memory, begin=begin),
        )
    if decompress:
        parts = partial(decompressed_blocks, path, decompress)
        return Input(path, Blocks(display_path(path), lambda: _unchanged(path, version, parts()), version=version))
    check_signature(path, beginning)
    return Input(path, _text(path), is_plain=True)


def _text(path: Path) -> TextFile:
    return TextFile(path) if url_of(path) is None else RemoteText(path)


def _record_form(path: Path) -> tuple[Literal["parquet", "json"] | None, Callable[[], BinaryIO] | None]:
    """The form of a file of records, judged by its name, else None; and what opens it if it is compressed."""
    name, decompress = path.name.lower(), decompressor(path)
    if name.endswith(".parquet"):
        return "parquet", None
    is_json = name.removesuffix(path.suffix if decompress else "").endswith((".jsonl", ".ndjson"))
    return "json" if is_json else None, decompress


def _parquet(path: Path, rows: Callable[[str | None, int, Stretch], Iterator[tuple[str, str]]]) -> Input:
    return Input(path, Records(path, _version(path), rows, RowGroups(path)))


def _json(
    path: Path,
    decompress: Callable[[], BinaryIO] | None,
    rows: Callable[[Callable[[], BinaryIO], str | None, int, int], Iterator[tuple[str, str]]],
) -> Input:
    text = _text(path) if decompress is None else None

    def read(label: str | None, memory: int, stretch: Stretch) -> Iterator[tuple[str, str]]:
        lines = decompress if text is None else partial(open_stretch, text, stretch)
        assert lines is not None
        return rows(lines, label, memory, stretch[0])

    version = None if text is None else text.version
    return Input(path, Records(path, version or _version(path), read, text))


def _unchanged(path: Path, version: str, parts: Iterator[T]) -> Iterator[T]:
    """The parts of a file; an error at the end if the file was written to while it was read."""
    yield from parts
    if _version(path) != version:
        raise changed(display_path(path))


class RecordTexts(Texts):
    """Records as a source.

    Args:
        records: The records.
        separator: A special token to put behind each, so that many of them are read together.
    """

    def __init__(self, records: Records, separator: str | None) -> None:
        super().__init__(
            records.name, lambda memory: _together(records.read(memory), separator), version=records.version
        )
        self.records = records
        self.separator = separator


def _together(texts: Iterable[str], separator: str | None) -> Iterator[bytes]:
    """Documents as UTF-8, many at once where there is a separator to put behind each, which no pretoken crosses."""
    gathered: list[bytes] = []
    ending = (separator or "").encode()
    size = 0
    for text in texts:
        # A lone surrogate stays invalid, for the counting to find.
        gathered += (text.encode(errors="surrogatepass"), ending)
        size += len(gathered[-2]) + TEXT_BYTES
        if separator is None or size >= _BLOCK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
