"""A stretch of a text as an open file."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from shared.bpe.training import TextFile
from trainer.text.formats import Stretch
from trainer.text.remote_text import RemoteText

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BLOCK_BYTES = 1 << 20


def open_stretch(text: TextFile, stretch: Stretch) -> BinaryIO:
    """Open some bytes of a text; from an object store they are read ahead.

    Raises:
        SourceError: There are fewer by now.
    """
    begin, end = stretch
    stop = text.size if end is None else end
    blocks = (text.read(start, min(stop, start + _BLOCK_BYTES)) for start in range(begin, stop, _BLOCK_BYTES))
    return io.BufferedReader(
        _Blocks(text.blocks(begin, stop) if isinstance(text, RemoteText) else blocks), _BLOCK_BYTES
    )


class _Blocks(io.RawIOBase):
    """Blocks of bytes, none of which is empty, as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        target = memoryview(buffer)
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
