"""A corpus as chunks of bytes that may be counted one by one, in any order, by any thread."""

import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from shared.bpe.errors import TokenizerError
from shared.bpe.kernels import boundaries
from shared.bpe.kernels.classes import character_classes
from shared.bpe.word_counts import Bytes, Specials

CHUNK_BYTES = 1 << 22
_SEARCHED = 1 << 14  # bytes at the end of a block in which a place to cut is looked for


class SourceError(TokenizerError):
    """A source that cannot be read, or is not UTF-8."""


class Chunk(NamedTuple):
    """Text that is cut like the whole corpus if it is cut alone.

    Attributes:
        data: Bytes, of which `data[begin:end]` are the chunk.
        offset: Where `data[0]` lies in the source.
        release: Called when the chunk has been counted.
    """

    data: Bytes
    begin: int
    end: int
    offset: int = 0
    release: Callable[[], None] = lambda: None


class Source(Protocol):
    """Something that can be read from any of its chunks' ends on.

    Attributes:
        name: What errors call it.
        size: Its bytes, 0 if that is not known.
    """

    name: str
    size: int

    def chunks(self, specials: Specials, begin: int) -> Iterator[Chunk]:
        """Its chunks in order, from a place where an earlier one ended."""


class MappedFile:
    """A file of text, mapped into memory: threads read the page cache, and nothing is copied.

    Args:
        path: The file.
        chunk_bytes: About how long a chunk is; one without a place to cut is as long as it must be.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES):
        self.name = str(path)
        self._path = path
        self._chunk_bytes = chunk_bytes
        self.size = path.stat().st_size

    def chunks(self, specials: Specials, begin: int) -> Iterator[Chunk]:
        """As in `Source`."""
        if self.size == 0:
            return
        with self._path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = np.frombuffer(mapped, dtype=np.uint8)
        while begin < len(data):
            end = _cut(data, begin + self._chunk_bytes, len(data), specials)
            yield Chunk(data, begin, end, release=partial(_forget, mapped, begin, end))
            begin = end


class Blocks:
    """Text that comes as blocks of bytes, cut anywhere: a stream, or a file that is unpacked on the way.

    Args:
        name: What errors call it.
        read: Called for the blocks, from the first one on.
        chunk_bytes: As in `MappedFile`.
    """

    size = 0

    def __init__(self, name: str, read: Callable[[], Iterable[bytes]], chunk_bytes: int = CHUNK_BYTES):
        self.name = name
        self._read = read
        self._chunk_bytes = chunk_bytes

    def chunks(self, specials: Specials, begin: int) -> Iterator[Chunk]:
        """As in `Source`; what lies before `begin` is read and left out."""
        pending, offset, wanted, skip = bytearray(), begin, self._chunk_bytes, begin
        for block in self._read():
            pending += block[skip:]
            skip = max(0, skip - len(block))
            # Cut only where a special token, or the look at the character behind, cannot lie across what is known.
            known = len(pending) - int(np.diff(specials.offsets).max(initial=0)) - 4
            if known < wanted:
                continue
            data = np.frombuffer(bytes(pending), dtype=np.uint8)
            end = _cut(data, max(1, known - _SEARCHED), len(data), specials)
            if end > known:
                wanted = 2 * known  # so that the search stays linear where nothing can be cut
                continue
            yield Chunk(data, 0, end, offset)
            pending, offset, wanted = pending[end:], offset + end, self._chunk_bytes
        if pending:
            yield Chunk(np.frombuffer(bytes(pending), dtype=np.uint8), 0, len(pending), offset)


class Texts:
    """Texts that are no part of each other: no piece crosses from one to the next.

    Args:
        name: What errors call them.
        read: Called for the texts as UTF-8, from the first one on.
    """

    size = 0

    def __init__(self, name: str, read: Callable[[], Iterable[bytes]]):
        self.name = name
        self._read = read

    def chunks(self, specials: Specials, begin: int) -> Iterator[Chunk]:  # noqa: ARG002
        """As in `Source`."""
        offset = 0
        for text in self._read():
            if text and offset >= begin:
                yield Chunk(np.frombuffer(text, dtype=np.uint8), 0, len(text), offset)
            offset += len(text)


def _cut(data: Bytes, begin: int, end: int, specials: Specials) -> int:
    if begin >= end:
        return end
    return int(boundaries.next_cut(data, begin, end, character_classes(), specials.text, specials.offsets))


def _forget(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Take pages that are done with out of our memory; they stay in the page cache."""
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def read_error(name: str, error: OSError) -> SourceError:
    """What to say about a source that cannot be read."""
    return SourceError(f"{name} cannot be read: {error.strerror or error}")
