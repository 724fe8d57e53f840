"""A text file as a source."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from shared.bpe.errors import TooLongError
from shared.bpe.training.corpus import (
    CHUNK_BYTES,
    MAX_CHARACTER_BYTES,
    SEARCH_BYTES,
    UNLIMITED,
    Bytes,
    Chunk,
    Specials,
    boundary_in,
    changed,
    version_of,
)

_BUFFER_BYTES = 2 * CHUNK_BYTES  # memory that each thread reads into again and again


class Readable(Protocol):
    """A file of some size, parts of which can be read."""

    size: int

    def read(self, begin: int, end: int) -> Bytes:
        """Bytes `begin` to `end`."""


class TextFile:
    """A text file. Every thread reads its chunks into a buffer of its own.

    A memory map would save the copy, but a truncated file or a failing disk would then kill the process.

    Args:
        path: The file.
        chunk_bytes: The usual size of a chunk; one without a boundary is as long as it must be.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES):
        self.name = str(path)
        self._path = path
        self._chunk_bytes = chunk_bytes
        self.size = path.stat().st_size
        self.version: str | None = version_of(path)

    def chunks(
        self, specials: Specials, begin: int, longest: int = UNLIMITED, stop: int = UNLIMITED
    ) -> Iterator[Chunk]:
        """As in `Source`; up to `stop`, where a chunk must be able to end."""
        file = _OpenFile(self._path)
        stop = min(stop, file.size)
        while begin < stop:
            end = min(stop, self.next_boundary(file, begin + self._chunk_bytes, specials))
            if end - begin > max(longest, self._chunk_bytes + SEARCH_BYTES):
                raise TooLongError(self.name, end - begin)
            yield Chunk(begin, end - begin, partial(file.read, begin, end))
            begin = end
        file.check_unchanged()

    def read(self, begin: int, end: int) -> bytes:
        """Some bytes.

        Raises:
            SourceError: There are fewer by now.
        """
        return _OpenFile(self._path).read(begin, end).tobytes()

    def boundary(self, begin: int, specials: Specials) -> int:
        """The first offset at or behind `begin` where a chunk can end."""
        return self.next_boundary(_OpenFile(self._path), begin, specials)

    def beginning(self, size: int, specials: Specials, longest: int) -> bytes:
        """The first `size` bytes, and what follows up to where a chunk can end.

        Raises:
            TooLongError: What follows exceeds `longest`.
        """
        end = self.boundary(size, specials)
        if end - size > longest:
            raise TooLongError(self.name, end - size)
        return self.read(0, end)

    @staticmethod
    def next_boundary(file: Readable, begin: int, specials: Specials) -> int:
        """Of an open file, the first boundary at or behind `begin`, searched for a few bytes at a time."""
        around = max(MAX_CHARACTER_BYTES + 1, specials.max_bytes)
        while begin < file.size:
            start, end = max(0, begin - around), min(file.size, begin + SEARCH_BYTES + around)
            found = start + boundary_in(file.read(start, end), begin - start, end - start, specials)
            # What lies at the end of these bytes may go on behind them.
            begin = end if end == file.size else end - around
            if found <= begin:
                return found
        return file.size


class _OpenFile:
    """A file that stays open as long as a chunk of it may be read."""

    def __init__(self, path: Path):
        self.name = str(path)
        self._handle = os.open(path, os.O_RDONLY)
        self.size, self._modified = self._stat()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, begin: int, end: int) -> Bytes:
        """Bytes `begin` to `end`, in memory that the thread's next call overwrites."""
        size = end - begin
        if size > _BUFFER_BYTES:
            data = np.empty(size, dtype=np.uint8)
        else:
            if not hasattr(_memory, "buffer"):
                _memory.buffer = np.empty(_BUFFER_BYTES, dtype=np.uint8)
            data = _memory.buffer[:size]
        filled = 0
        while filled < size:
            count = os.preadv(self._handle, [data[filled:].data], begin + filled)
            if not count:
                raise changed(self.name)
            filled += count
        return data

    def check_unchanged(self) -> None:
        """Raise a SourceError if the file was modified since it was opened."""
        if self._stat() != (self.size, self._modified):
            raise changed(self.name)

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns


_memory = threading.local()
