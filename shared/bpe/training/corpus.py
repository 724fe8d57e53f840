"""A corpus as chunks of bytes that can be counted one by one, in any order, by any thread.

A *block* is a part of a text as it arrives, split anywhere. A *chunk* ends where a pretoken ends, whatever follows: its
pretokens are those of the whole text.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import SourceError, TooLongError
from shared.bpe.kernels import boundaries
from shared.bpe.kernels.classes import character_classes

Bytes = NDArray[np.uint8]
Errors = Literal["strict", "replace"]

CHUNK_BYTES = 1 << 20
SEARCH_BYTES = 1 << 14  # searched for a boundary at once
MAX_CHARACTER_BYTES = 4
UNLIMITED = 1 << 62
_REPLACEMENT = "\ufffd".encode()


class Specials:
    """Special tokens, and `arrays` of them as the kernels take them."""

    def __init__(self, spellings: Iterable[bytes] = ()):
        ordered = sorted(spellings, key=lambda spelling: (spelling[0], -len(spelling)))
        self.arrays = boundaries.SpecialTokens(
            text=np.frombuffer(b"".join(ordered) or b"\0", dtype=np.uint8),
            offsets=np.cumsum([0, *map(len, ordered)], dtype=np.int64),
        )

    @property
    def max_bytes(self) -> int:
        """The length of the longest special token."""
        return int(np.diff(self.arrays.offsets).max(initial=0))


class Chunk(NamedTuple):
    """A part of a source that has the same pretokens alone as within the whole.

    Attributes:
        offset: Its first byte in the source.
        size: Its bytes.
        read: Returns them, on any thread. The memory is valid until the same thread reads its next chunk.
    """

    offset: int
    size: int
    read: Callable[[], Bytes]

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.size


class Source(Protocol):
    """Text that can be read from the end of any of its chunks on.

    Attributes:
        name: The source in error messages.
        size: Its bytes; 0 if unknown.
        version: Changes when the text does; None if the source can be read only once.
    """

    name: str
    size: int
    version: str | None

    def chunks(self, specials: Specials, begin: int, longest: int = UNLIMITED) -> Iterator[Chunk]:
        """The chunks in order, from an offset at which an earlier chunk ended.

        Args:
            specials: Special tokens, which are never split.
            begin: The first offset.
            longest: Bytes of memory that a chunk may take.

        Raises:
            SourceError: The source cannot be read, or was changed meanwhile.
            TooLongError: A chunk exceeds `longest`.
        """


class Blocks:
    """Text that arrives as blocks of bytes, split anywhere: a stream, or a file that is decompressed on the fly.

    Args:
        name: As in `Source`.
        read: Returns the blocks, from the first one on.
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

    def chunks(self, specials: Specials, begin: int, longest: int = UNLIMITED) -> Iterator[Chunk]:
        """As in `Source`; what lies before `begin` is read and dropped."""
        pending, offset, wanted, skip = bytearray(), begin, self._chunk_bytes, begin
        longest = max(longest // 2, 2 * self._chunk_bytes)  # pending bytes are copied
        for block in self._read():
            pending += block[skip:]
            skip = max(0, skip - len(block))
            # Split only where neither a special token nor the look-ahead character can reach beyond what has arrived.
            known = len(pending) - specials.max_bytes - MAX_CHARACTER_BYTES
            if known < wanted:
                continue
            end = boundary_in(
                np.frombuffer(pending, dtype=np.uint8), max(1, known - SEARCH_BYTES), len(pending), specials
            )
            if end > known:
                if known > longest:
                    raise TooLongError(self.name, known)
                wanted = 2 * known  # so that the search stays linear where there is no boundary
                continue
            yield in_memory(np.frombuffer(bytes(memoryview(pending)[:end]), dtype=np.uint8), offset)
            pending, offset, wanted = pending[end:], offset + end, self._chunk_bytes
        if pending:
            yield in_memory(np.frombuffer(pending, dtype=np.uint8), offset)


class Texts:
    """Separate texts: no pretoken spans two of them.

    Args:
        name: As in `Source`.
        read: Called with the bytes of memory that reading one text may take; returns the texts as UTF-8.
        version: As in `Source`.
    """

    size = 0

    def __init__(self, name: str, read: Callable[[int], Iterable[bytes]], *, version: str | None = None):
        self.name = name
        self.version = version
        self._read = read

    def chunks(self, specials: Specials, begin: int, longest: int = UNLIMITED) -> Iterator[Chunk]:  # noqa: ARG002
        """As in `Source`."""
        offset = 0
        for text in self._read(longest):
            if len(text) > max(longest, CHUNK_BYTES):
                raise TooLongError(self.name, len(text), "the end of a record")
            if text and offset >= begin:
                yield in_memory(np.frombuffer(text, dtype=np.uint8), offset)
            offset += len(text)


def in_memory(data: Bytes, offset: int) -> Chunk:
    """A chunk whose bytes are in memory already."""
    return Chunk(offset, len(data), lambda: data)


def escaped_characters(source: Source, begin: int, longest: int) -> Iterator[str]:
    """A source as text. Invalid bytes become surrogates: encoding with `surrogateescape` restores all bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for chunk in source.chunks(Specials(), begin, longest):
        yield decoder.decode(chunk.read().tobytes())
    yield decoder.decode(b"", final=True)


def replace_invalid(data: bytes) -> tuple[bytes, int]:
    """The text with U+FFFD for bytes that are not UTF-8, as Python's decoder puts it, and the number of those."""
    text = data.decode(errors="replace").encode()
    return text, text.count(_REPLACEMENT) - data.count(_REPLACEMENT)


def changed(name: str) -> SourceError:
    """The error for a file that is being written to."""
    return SourceError(f"{name} was changed while it was read; wait until it is complete, or read a copy of it")


def read_error(name: str, error: OSError) -> SourceError:
    """The error for a source that cannot be read."""
    return SourceError(f"{name} cannot be read: {error.strerror or error}")


def version_of(path: Path) -> str:
    """The `version` of a file: its size and modification time."""
    status = path.stat()
    return f"{status.st_size} bytes, last written {status.st_mtime_ns}"


def boundary_in(data: Bytes, begin: int, end: int, specials: Specials) -> int:
    """The first place from `begin` on where a chunk of UTF-8 can end, or else `end`."""
    if begin >= end:
        return end
    return int(boundaries.next_cut(data, begin, end, character_classes(), specials.arrays))
