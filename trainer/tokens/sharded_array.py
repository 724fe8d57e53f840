"""An array in several files, read by offset as if it were one."""

import bisect
import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainer.tokens.manifest import TokenFileError

_MOST_OPEN = 128
"""Files that one array holds open; systems allow a process a thousand."""


class ShardRange(NamedTuple):
    """What a range of the array is in one file.

    Attributes:
        shard: Number of the file.
        begin: First item in the file.
        end: The one behind the last.
    """

    shard: int
    begin: int
    end: int


class ShardedArray:
    """The files of an array, all of which must have the size that is expected.

    The first hundred stay the same files if others replace them on disk; of more, one that was replaced is refused.

    Args:
        paths: The files.
        counts: Items of each.
        itemsize: Bytes of an item.

    Raises:
        TokenFileError: A file cannot be opened, or has another size.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], itemsize: int) -> None:
        self.paths = paths
        self._counts = counts
        self._starts = [0, *itertools.accumulate(counts)]
        self._itemsize = itemsize
        self._open: OrderedDict[int, int] = OrderedDict()
        weakref.finalize(self, _close_all, self._open)
        self._found = [self._check(number) for number in range(len(paths))]

    def shard_ranges(self, start: int, stop: int) -> Iterator[ShardRange]:
        """Where the items from `start` to before `stop` are."""
        shard = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            end = min(stop, self._starts[shard + 1])
            if start < end:
                yield ShardRange(shard, start - self._starts[shard], end - self._starts[shard])
            start, shard = end, shard + 1

    def read(self, span: ShardRange) -> bytes:
        """The bytes of a range.

        Raises:
            TokenFileError: The file was changed: it is shorter, or another one, or cannot be read any more.
        """
        path, wanted = self.paths[span.shard], (span.end - span.begin) * self._itemsize
        try:
            data = os.pread(self._descriptor(span.shard), wanted, span.begin * self._itemsize)
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) < wanted:
            raise TokenFileError(f"{path} was cut short while it was read: it has fewer than {span.end:,} tokens now")
        return data

    def _check(self, shard: int) -> tuple[int, int, int]:
        """What identifies a file, after a check of its size."""
        path, count = self.paths[shard], self._counts[shard]
        try:
            status = os.fstat(self._descriptor(shard, checked=False)) if shard < _MOST_OPEN else path.stat()
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
        if status.st_size != count * self._itemsize or not status.st_size:
            raise TokenFileError(
                f"{path} has {status.st_size} bytes, but its manifest says {count} tokens of {self._itemsize} bytes, "
                "and there must be at least one; encode the text again"
            )
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _descriptor(self, shard: int, *, checked: bool = True) -> int:
        if shard in self._open:
            self._open.move_to_end(shard)
            return self._open[shard]
        descriptor = os.open(self.paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        if checked:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino, status.st_mtime_ns) != self._found[shard]:
                os.close(descriptor)
                raise TokenFileError(f"{self.paths[shard]} was replaced while it was in use; start again")
        self._open[shard] = descriptor
        if len(self._open) > _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


def _close_all(descriptors: "OrderedDict[int, int]") -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
