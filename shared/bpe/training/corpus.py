"""A corpus as chunks of bytes that may be counted one by one, in any order, by any thread."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from shared.bpe.errors import SourceError, TooLongError
from shared.bpe.kernels import boundaries
from shared.bpe.kernels.classes import character_classes
from shared.bpe.training.word_counts import Bytes, Specials

CHUNK_BYTES = 1 << 20
_SEARCHED = 1 << 14  # bytes in which a place to cut is looked for at once
_LONGEST_CHARACTER = 4
_UNLIMITED = 1 << 62
_KEPT_BYTES = 2 * CHUNK_BYTES  # of memory that a thread uses again


class Chunk(NamedTuple):
    """Text that is cut like the whole corpus if it is cut alone.

    Attributes:
        offset: Where it begins in the source.
        size: Its bytes.
        read: Gives them, on any thread: memory that is that thread's until it reads its next chunk.
    """

    offset: int
    size: int
    read: Callable[[], Bytes]

    @property
    def end(self) -> int:
        """Where it ends in the source."""
        return self.offset + self.size


class Source(Protocol):
    """Something that can be read from any of its chunks' ends on.

    Attributes:
        name: What errors call it.
        size: Its bytes, 0 if that is not known.
        version: What is another when its text is; None if it can be read only once, so that no job can go on with it.
    """

    name: str
    size: int
    version: str | None

    def chunks(self, specials: Specials, begin: int, longest: int = _UNLIMITED) -> Iterator[Chunk]:
        """Its chunks in order, from a place where an earlier one ended.

        Raises:
            SourceError: If it cannot be read, or was changed meanwhile.
            TooLongError: If a chunk would take more than `longest` bytes of memory.
        """


class TextFile:
    """A file of text. Every thread reads its own chunks into memory that it uses again.

    A memory map would save the copy, but kill the process where the file is cut off or the disk fails meanwhile.

    Args:
        path: The file.
        chunk_bytes: About how long a chunk is; one without a place to cut is as long as it must be.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES):
        self.name = str(path)
        self._path = path
        self._chunk_bytes = chunk_bytes
        self.size = path.stat().st_size
        self.version: str | None = version_of(path)

    def chunks(self, specials: Specials, begin: int, longest: int = _UNLIMITED) -> Iterator[Chunk]:
        """As in `Source`."""
        file = _OpenFile(self._path)
        while begin < file.size:
            end = self._cut(file, begin + self._chunk_bytes, specials)
            if end - begin > max(longest, self._chunk_bytes + _SEARCHED):
                raise TooLongError(self.name, end - begin)
            yield Chunk(begin, end - begin, partial(file.read, begin, end))
            begin = end
        file.check_unchanged()

    @staticmethod
    def _cut(file: "_OpenFile", begin: int, specials: Specials) -> int:
        """The first place to cut from `begin` on, looked for a few bytes at a time."""
        around = max(_LONGEST_CHARACTER + 1, longest_of(specials))
        while begin < file.size:
            start, end = max(0, begin - around), min(file.size, begin + _SEARCHED + around)
            found = start + _cut(file.read(start, end), begin - start, end - start, specials)
            # What lies at the end of these bytes may go on behind them.
            begin = end if end == file.size else end - around
            if found <= begin:
                return found
        return file.size


class Blocks:
    """Text that comes as blocks of bytes, cut anywhere: a stream, or a file that is unpacked on the way.

    Args:
        name: What errors call it.
        read: Called for the blocks, from the first one on.
        chunk_bytes: As in `TextFile`.
        version: As in `Source`.
    """

    size = 0

    def __init__(
        self,
        name: str,
        read: Callable[[], Iterable[bytes]],
        chunk_bytes: int = CHUNK_BYTES,
        *,
        version: str | None = None,
    ):
        self.name = name
        self.version = version
        self._read = read
        self._chunk_bytes = chunk_bytes

    def chunks(self, specials: Specials, begin: int, longest: int = _UNLIMITED) -> Iterator[Chunk]:
        """As in `Source`; what lies before `begin` is read and left out."""
        pending, offset, wanted, skip = bytearray(), begin, self._chunk_bytes, begin
        longest = max(longest // 2, 2 * self._chunk_bytes)  # what is pending is copied
        for block in self._read():
            pending += block[skip:]
            skip = max(0, skip - len(block))
            # Cut only where a special token, or the look at the character behind, cannot lie across what is known.
            known = len(pending) - longest_of(specials) - _LONGEST_CHARACTER
            if known < wanted:
                continue
            end = _cut(np.frombuffer(pending, dtype=np.uint8), max(1, known - _SEARCHED), len(pending), specials)
            if end > known:
                if known > longest:
                    raise TooLongError(self.name, known)
                wanted = 2 * known  # so that the search stays linear where nothing can be cut
                continue
            yield in_memory(np.frombuffer(bytes(memoryview(pending)[:end]), dtype=np.uint8), offset)
            pending, offset, wanted = pending[end:], offset + end, self._chunk_bytes
        if pending:
            yield in_memory(np.frombuffer(pending, dtype=np.uint8), offset)


class Texts:
    """Texts that are no part of each other: no piece crosses from one to the next.

    Args:
        name: What errors call them.
        read: Called for the texts as UTF-8, from the first one on, with the bytes of memory that reading one may take.
        version: As in `Source`.
    """

    size = 0

    def __init__(self, name: str, read: Callable[[int], Iterable[bytes]], *, version: str | None = None):
        self.name = name
        self.version = version
        self._read = read

    def chunks(self, specials: Specials, begin: int, longest: int = _UNLIMITED) -> Iterator[Chunk]:  # noqa: ARG002
        """As in `Source`."""
        offset = 0
        for text in self._read(longest):
            if len(text) > max(longest, CHUNK_BYTES):
                raise TooLongError(self.name, len(text), "the end of a record")
            if text and offset >= begin:
                yield in_memory(np.frombuffer(text, dtype=np.uint8), offset)
            offset += len(text)


def _cut(data: Bytes, begin: int, end: int, specials: Specials) -> int:
    if begin >= end:
        return end
    return int(boundaries.next_cut(data, begin, end, character_classes(), specials.text, specials.offsets))


def longest_of(specials: Specials) -> int:
    """The bytes of the longest special token."""
    return int(np.diff(specials.offsets).max(initial=0))


def in_memory(data: Bytes, offset: int) -> Chunk:
    """A chunk that is there already."""
    return Chunk(offset, len(data), lambda: data)


class _OpenFile:
    """A file that stays open as long as a chunk of it is to be read."""

    def __init__(self, path: Path):
        self.name = str(path)
        self._handle = os.open(path, os.O_RDONLY)
        self.size, self._modified = self._stat()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, begin: int, end: int) -> Bytes:
        """Bytes `begin` to `end`, where the thread's last ones were."""
        size = end - begin
        if size > _KEPT_BYTES:
            data = np.empty(size, dtype=np.uint8)
        else:
            if not hasattr(_memory, "buffer"):
                _memory.buffer = np.empty(_KEPT_BYTES, dtype=np.uint8)
            data = _memory.buffer[:size]
        filled = 0
        while filled < size:
            count = os.preadv(self._handle, [data[filled:].data], begin + filled)
            if not count:
                raise changed(self.name)
            filled += count
        return data

    def check_unchanged(self) -> None:
        """Raise a SourceError if the file was written to since it was opened."""
        if self._stat() != (self.size, self._modified):
            raise changed(self.name)

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns


_memory = threading.local()


def changed(name: str) -> SourceError:
    """What to say about a file that somebody writes to."""
    return SourceError(f"{name} was changed while it was read; wait until it is complete, or read a copy of it")


def version_of(path: Path) -> str:
    """The `version` of a file: its size, and when it was last written to."""
    status = path.stat()
    return f"{status.st_size} bytes, last written {status.st_mtime_ns}"


def read_error(name: str, error: OSError) -> SourceError:
    """What to say about a source that cannot be read."""
    return SourceError(f"{name} cannot be read: {error.strerror or error}")
