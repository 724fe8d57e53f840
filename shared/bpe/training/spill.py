r"""Pretoken counts that exceed the memory limit, on disk (external aggregation).

A run is one table, its pretokens partitioned into BUCKETS by the top bits of their hashes. Buckets of the same number
hold the same pretokens in all runs, so that they can be joined a few at a time, whatever their total size.

    run-00000.words | number of entries and arena bytes of each bucket | entries, arena of bucket 0 | ...
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import TokenizerError
from shared.bpe.kernels import pretoken_moving
from shared.bpe.kernels import pretoken_table as kernel
from shared.bpe.training.pretoken_counts import PretokenCounts

BUCKETS = 1 << kernel.BUCKET_BITS

_ENTRY_BYTES = 8 * kernel.ENTRY_SIZE
_HEADER_BYTES = 16 * BUCKETS

# Tables are written when memory is short, so writing must take little of it.
_BUCKETS_AT_ONCE = 16
_HASHES_AT_ONCE = 1 << 16


class SpilledRuns:
    """The runs in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def paths(self) -> list[Path]:
        """The runs, in the order in which they were written."""
        return sorted(self.folder.glob("run-*.words"))

    @property
    def nbytes(self) -> int:
        """Their size on disk."""
        return sum(path.stat().st_size for path in self.paths)

    def write(self, table: PretokenCounts, number: int) -> None:
        """Write a table as a run. Different runs may be written at the same time.

        Raises:
            TokenizerError: It cannot be written, for example because the disk is full.
        """
        path = self.folder / f"run-{number:05}.words"
        try:
            with path.open("wb") as file:
                _write_run(table, file)
        except OSError as error:
            raise TokenizerError(
                f"pretoken counts cannot be written to {path}: {error.strerror}. They need {table.nbytes:,} bytes: "
                "free some space, set TMPDIR to a folder on another disk, or raise --memory-limit"
            ) from None

    def partitions(self, number: int) -> Iterator[PretokenCounts]:
        """All pretokens with their counts over all runs, in this many tables, one after the other."""
        number = min(number, BUCKETS)
        edges = [index * BUCKETS // number for index in range(number + 1)]
        for first, last in pairwise(edges):
            table = PretokenCounts()
            # Entries come in the order of their hashes, and would form long clusters in an index that grows meanwhile.
            table.reserve(sum(int(_read_sizes(path)[first:last, 0].sum()) for path in self.paths))
            for path in self.paths:
                _read_buckets(path, range(first, last), table)
            yield table


def _write_run(table: PretokenCounts, file: BinaryIO) -> None:
    buckets = _buckets_of(table)
    sizes = np.zeros((BUCKETS, 2), dtype=np.int64)
    file.seek(_HEADER_BYTES)
    for first in range(0, BUCKETS, _BUCKETS_AT_ONCE):
        last = first + _BUCKETS_AT_ONCE
        chosen = np.flatnonzero((buckets >= first) & (buckets < last))
        chosen = chosen[np.argsort(buckets[chosen], kind="stable")]
        edges = np.searchsorted(buckets[chosen], np.arange(first + 1, last))
        for bucket, part in enumerate(np.split(chosen, edges), start=first):
            entries, arena = _gather(table, part)
            sizes[bucket] = len(part), len(arena)
            file.write(entries.data)
            file.write(arena.data)
    file.seek(0)
    file.write(sizes.tobytes())


def _buckets_of(table: PretokenCounts) -> NDArray[np.uint8]:
    """The bucket of each pretoken, in one byte."""
    buckets = np.empty(len(table), dtype=np.uint8)
    hashes = np.empty(_HASHES_AT_ONCE, dtype=np.uint64)
    entries = table.pretokens.entries
    for first in range(0, len(table), _HASHES_AT_ONCE):
        last = min(first + _HASHES_AT_ONCE, len(table))
        pretoken_moving.hash_all(entries[kernel.ENTRY_SIZE * first :], hashes[: last - first])
        buckets[first:last] = hashes[: last - first] >> np.uint64(64 - kernel.BUCKET_BITS)
    return buckets


def _gather(table: PretokenCounts, part: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    entries = np.empty(len(part) * kernel.ENTRY_SIZE, dtype=np.uint64)
    arena = np.empty(pretoken_moving.arena_needed(table.pretokens, part), dtype=np.uint8)
    pretoken_moving.gather(table.pretokens, part, entries, arena)
    return entries, arena


def _read_sizes(path: Path) -> NDArray[np.int64]:
    """Entries and arena bytes of each bucket."""
    with path.open("rb") as file:
        data = file.read(_HEADER_BYTES)
    return np.frombuffer(data, dtype=np.int64).reshape(BUCKETS, 2)


def _read_buckets(path: Path, buckets: range, table: PretokenCounts) -> None:
    sizes = _read_sizes(path)
    before = sizes[: buckets.start]
    with path.open("rb") as file:
        file.seek(_HEADER_BYTES + int(before[:, 0].sum()) * _ENTRY_BYTES + int(before[:, 1].sum()))
        for bucket in buckets:
            entries = file.read(int(sizes[bucket, 0]) * _ENTRY_BYTES)
            arena = file.read(int(sizes[bucket, 1]))
            if len(entries) < sizes[bucket, 0] * _ENTRY_BYTES or len(arena) < sizes[bucket, 1]:
                raise TokenizerError(f"{path} is truncated")
            pretokens = np.frombuffer(entries, dtype=np.uint64), np.frombuffer(arena or b"\0", dtype=np.uint8)
            table.add(kernel.Pretokens(*pretokens))
