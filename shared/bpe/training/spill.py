r"""Word counts on disk: what does not fit into memory, and what an interrupted training goes on from.

A run is one word table, its words cut into BUCKETS by the top bits of their hashes. Buckets of the same number
hold the same words in all runs, so that they can be joined a few at a time, whatever the size of the whole.

    run-00000.words | magic | words and arena bytes of each bucket | words, arena of bucket 0 | words, arena of 1 ...
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import TokenizerError
from shared.bpe.kernels import word_moving
from shared.bpe.kernels import word_table as kernel
from shared.bpe.training.word_counts import WordCounts

BUCKETS = 1 << kernel.BUCKET_BITS

_MAGIC = 0x3173_6472_6F77  # changes with the format and with the hash
_WORD_BYTES = 8 * kernel.WORD_SIZE
_HEADER_BYTES = 8 + 16 * BUCKETS

# Tables are written when memory is short, so that this must take little of it.
_BUCKETS_AT_ONCE = 16
_HASHES_AT_ONCE = 1 << 16


class WordRuns:
    """The runs in one folder, which is made when the first is written."""

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

    def write(self, table: WordCounts, number: int) -> None:
        """Write a table as a run; it is there whole or not at all.

        Raises:
            TokenizerError: If the disk has no room for it.
        """
        path = self.folder / f"run-{number:05}.words"
        temporary = path.with_suffix(".partial")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                _write_run(table, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TokenizerError(
                f"word counts cannot be written to {path}: {error.strerror}. They need {table.nbytes:,} bytes there; "
                "free some space, or allow more memory (--memory-limit)"
            ) from None

    def partitions(self, number: int) -> Iterator[WordCounts]:
        """All words with their counts over all runs, in so many tables, one after the other."""
        number = min(number, BUCKETS)
        edges = [index * BUCKETS // number for index in range(number + 1)]
        for first, last in pairwise(edges):
            table = WordCounts()
            # Words come in the order of their hashes: into an index that grows meanwhile they would crowd together.
            table.reserve(sum(int(_read_sizes(path)[first:last, 0].sum()) for path in self.paths))
            for path in self.paths:
                _read_buckets(path, range(first, last), table)
            yield table

    def remove(self) -> None:
        """Delete the runs."""
        for path in [*self.paths, *self.folder.glob("run-*.partial")]:
            path.unlink()


def _write_run(table: WordCounts, file: BinaryIO) -> None:
    buckets = _buckets_of(table)
    sizes = np.zeros((BUCKETS, 2), dtype=np.int64)
    file.seek(_HEADER_BYTES)
    for first in range(0, BUCKETS, _BUCKETS_AT_ONCE):
        last = first + _BUCKETS_AT_ONCE
        chosen = np.flatnonzero((buckets >= first) & (buckets < last))
        chosen = chosen[np.argsort(buckets[chosen], kind="stable")]
        edges = np.searchsorted(buckets[chosen], np.arange(first + 1, last))
        for bucket, part in enumerate(np.split(chosen, edges), start=first):
            words, arena = _gathered(table, part)
            sizes[bucket] = len(part), len(arena)
            file.write(words.data)
            file.write(arena.data)
    file.seek(0)
    file.write(np.array([_MAGIC], dtype=np.uint64).tobytes() + sizes.tobytes())


def _buckets_of(table: WordCounts) -> NDArray[np.uint8]:
    """The bucket of each word: one byte where a hash has eight."""
    buckets = np.empty(len(table), dtype=np.uint8)
    hashes = np.empty(_HASHES_AT_ONCE, dtype=np.uint64)
    for first in range(0, len(table), _HASHES_AT_ONCE):
        last = min(first + _HASHES_AT_ONCE, len(table))
        word_moving.hash_all(table.words[kernel.WORD_SIZE * first :], hashes[: last - first])
        buckets[first:last] = hashes[: last - first] >> np.uint64(64 - kernel.BUCKET_BITS)
    return buckets


def _gathered(table: WordCounts, part: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    words = np.empty(len(part) * kernel.WORD_SIZE, dtype=np.uint64)
    arena = np.empty(word_moving.arena_needed(table.words, table.arena, part), dtype=np.uint8)
    word_moving.gather(table.words, table.arena, part, words, arena, np.zeros(3, dtype=np.int64))
    return words, arena


def _read_sizes(path: Path) -> NDArray[np.int64]:
    """Words and bytes of arena by bucket."""
    with path.open("rb") as file:
        data = file.read(_HEADER_BYTES)
    if len(data) < _HEADER_BYTES or int.from_bytes(data[:8], "little") != _MAGIC:
        raise TokenizerError(f"{path} holds no word counts of this version; delete it and count again")
    return np.frombuffer(data, dtype=np.int64, offset=8).reshape(BUCKETS, 2)


def _read_buckets(path: Path, buckets: range, table: WordCounts) -> None:
    sizes = _read_sizes(path)
    before = sizes[: buckets.start]
    with path.open("rb") as file:
        file.seek(_HEADER_BYTES + int(before[:, 0].sum()) * _WORD_BYTES + int(before[:, 1].sum()))
        for bucket in buckets:
            words = file.read(int(sizes[bucket, 0]) * _WORD_BYTES)
            arena = file.read(int(sizes[bucket, 1]))
            if len(words) < sizes[bucket, 0] * _WORD_BYTES or len(arena) < sizes[bucket, 1]:
                raise TokenizerError(f"{path} is cut off; delete it and count again")
            table.add(np.frombuffer(words, dtype=np.uint64), np.frombuffer(arena or b"\0", dtype=np.uint8))
