"""A text file in an object store."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from shared.bpe.training import CHUNK_BYTES, UNLIMITED, Blocks, Bytes, Chunk, Specials, TextFile, changed
from trainer.storage.remote import display_path, read_range, size_and_version

_REQUEST_BYTES = 8 << 20
_REQUESTS = 4
"""Requests at a time, of so many bytes: one alone waits for its answer most of the time."""


class RemoteText(TextFile):
    """A text file in an object store, read by a few requests at once, ahead of what needs it.

    Args:
        path: The file.
        chunk_bytes: As in `TextFile`.

    Raises:
        OSError: There is no such file, or it cannot be asked for.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.name = display_path(path)
        self._path = path
        self._chunk_bytes = chunk_bytes
        self.size, self.version = size_and_version(path)

    def read(self, begin: int, end: int) -> bytes:
        """As in `TextFile`."""
        return read_range(self._path, begin, end)

    def boundary(self, begin: int, specials: Specials) -> int:
        """As in `TextFile`."""
        return self.next_boundary(_Ranges(self), begin, specials)

    def chunks(
        self, specials: Specials, begin: int, longest: int = UNLIMITED, stop: int = UNLIMITED
    ) -> Iterator[Chunk]:
        """As in `TextFile`."""
        stop = min(stop, self.size)
        blocks = Blocks(self.name, lambda: self.blocks(begin, stop), self._chunk_bytes)
        for chunk in blocks.chunks(specials, 0, longest):
            yield chunk._replace(offset=begin + chunk.offset)
        if size_and_version(self._path) != (self.size, self.version):
            raise changed(self.name)

    def blocks(self, begin: int, stop: int) -> Iterator[bytes]:
        """The bytes between two places, in order."""
        waiting: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for start in range(begin, stop, _REQUEST_BYTES):
                waiting.append(pool.submit(self.read, start, min(stop, start + _REQUEST_BYTES)))
                if len(waiting) > _REQUESTS:
                    yield from self._parts(waiting.popleft().result())
            while waiting:
                yield from self._parts(waiting.popleft().result())

    def _parts(self, data: bytes) -> Iterator[bytes]:
        """A response in parts that are small enough for several threads to share."""
        for start in range(0, len(data), self._chunk_bytes):
            yield data[start : start + self._chunk_bytes]


class _Ranges:
    """Reads a few bytes here and there, as `TextFile.next_boundary` does."""

    def __init__(self, text: RemoteText) -> None:
        self.size = text.size
        self._text = text

    def read(self, begin: int, end: int) -> Bytes:
        return np.frombuffer(self._text.read(begin, end), np.uint8)
