"""Counting the words of a corpus on all cores, in bounded memory, and going on after an interruption."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from shared.bpe.errors import SourceError, TokenizerError
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.training.corpus import Chunk, Source, read_error
from shared.bpe.training.cutting import Cutter
from shared.bpe.training.layout import Partitions
from shared.bpe.training.memory import BYTES_PER_PRETOKEN_BYTE
from shared.bpe.training.spill import WordRuns
from shared.bpe.training.word_counts import Bytes, WordCounts
from shared.system.thread_pool import Task, WorkPool

Errors = Literal["strict", "replace"]
# Called with the bytes counted so far.
BytesProgress = Callable[[int], None]

_SHARE_OF_A_PARTITION = 4
_REPLACEMENT = "\ufffd".encode()


@dataclass
class Position:
    """How far a corpus has been counted: everything before `offset` of source number `source`, and nothing behind."""

    source: int = 0
    offset: int = 0
    bytes_counted: int = 0
    replaced: int = 0


class _Invalid(NamedTuple):
    source: int
    offset: int
    message: str


class CorpusCounter:
    """Threads that take chunks from one iterator and count them, each in a table of its own.

    Attributes:
        position: How far they have come.
        is_whole: Whether the tables and runs hold what lies before the position, and nothing else.

    Args:
        cutter: The pattern.
        threads: How many.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD, as Python's decoder has it.
        table_bytes: Memory for the tables of all threads together; None for as much as they need.
        longest: Bytes that a part of the text may take in memory.
        longest_word: Bytes that a single piece may have.
        runs: Where counts go that find no room.
    """

    def __init__(
        self,
        cutter: Cutter,
        *,
        threads: int,
        errors: Errors = "strict",
        table_bytes: int | None = None,
        longest: int = 1 << 62,
        longest_word: int = 1 << 62,
        runs: WordRuns,
    ):
        self.position = Position()
        self.is_whole = True
        self._cutter = cutter
        self._longest = longest
        self._longest_word = longest_word
        self._errors = errors
        self._table_bytes = table_bytes
        self._runs = runs
        self._num_runs = len(runs.paths)
        share = None if table_bytes is None else table_bytes // threads
        self._tables = [WordCounts(share) for _ in range(threads)]
        self._lock = threading.Lock()
        self._stop = False
        self._is_torn = False
        self._invalid: list[_Invalid] = []

    def count(
        self,
        sources: Sequence[Source],
        progress: BytesProgress | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Count all sources from `position` on, or until it shall stop; `position` says what has been counted.

        Raises:
            SourceError: If a source cannot be read, or holds bytes that are not UTF-8 (the first such is named).
            TokenizerError: If a single piece is too long for the memory allowed.
        """
        self.is_whole = False
        chunks = self._chunks(sources)
        workers: list[Task[None]] = []
        try:
            with WorkPool(len(self._tables)) as pool:
                try:
                    work = partial(self._work, chunks, sources, progress, should_stop)
                    workers += [pool.submit(partial(work, table)) for table in self._tables]
                    for worker in workers:
                        pool.result(worker)
                finally:
                    # Whatever happened here or in a thread, chunks that were handed out are finished.
                    self._stop = True
        finally:
            self.is_whole = not self._is_torn and not any(worker.is_running for worker in workers)
        if self._invalid:
            raise SourceError(min(self._invalid).message)

    def resume(self, position: Position) -> None:
        """Go on from a position; the runs hold what came before it."""
        self.position = position
        self._num_runs = len(self._runs.paths)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of word counts on disk."""
        return self._runs.nbytes

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing was written to disk."""
        return not self._num_runs

    def partitions(self) -> Partitions:
        """All words with their counts over all threads and runs, in one table or in several, as often as called."""
        if self.is_in_memory and self._fit_together():
            first, *others = self._tables
            self.is_whole = False
            first.max_bytes = None
            for table in others:
                first.add(table.words, table.arena)
            self._tables = [first]
            self.is_whole = True
            return lambda: iter([first])
        self.spill()
        size = self._runs.nbytes
        share = max(1, (self._table_bytes or size) // _SHARE_OF_A_PARTITION)
        return lambda: self._runs.partitions(-(-size // share))

    def spill(self) -> None:
        """Write all counts to disk."""
        for table in self._tables:
            if len(table):
                self._spill(table)

    def _fit_together(self) -> bool:
        """Whether the tables can be joined: at worst, in one that is as large as all and has just become too small."""
        return self._table_bytes is None or 4 * sum(table.nbytes for table in self._tables) <= self._table_bytes

    def _chunks(self, sources: Sequence[Source]) -> Iterator[tuple[int, Chunk]]:
        for number in range(self.position.source, len(sources)):
            begin = self.position.offset if number == self.position.source else 0
            try:
                for chunk in self._cutter.chunks(sources[number], begin, self._longest):
                    self.position.source = number
                    self.position.offset = chunk.end
                    yield number, chunk
            except OSError as error:
                raise read_error(sources[number].name, error) from None

    def _work(
        self,
        chunks: Iterator[tuple[int, Chunk]],
        sources: Sequence[Source],
        progress: BytesProgress | None,
        should_stop: Callable[[], bool],
        table: WordCounts,
    ) -> None:
        is_counted = True  # what was handed out here
        try:
            while True:
                with self._lock:
                    if self._stop or self._invalid or should_stop():
                        return
                    before = self.position.source, self.position.offset
                    try:
                        item = next(chunks, None)
                    finally:
                        is_counted = (self.position.source, self.position.offset) == before
                if item is None:
                    return
                number, chunk = item
                self._count(table, self._valid(chunk, number, sources[number].name))
                if chunk.size > self._longest_word:
                    self._check_longest(table)
                with self._lock:
                    self.position.bytes_counted += chunk.size
                    is_counted = True
                    if progress is not None:
                        progress(self.position.bytes_counted)
        except BaseException:  # in the caller's thread, an interruption at any place
            self._stop = True
            if not is_counted:
                self._is_torn = True
            raise

    def _valid(self, chunk: Chunk, source: int, name: str) -> Bytes:
        """The bytes of a chunk, wrong ones replaced if they may be; none if they may not."""
        data = chunk.read()
        place = int(first_invalid(data, 0, len(data)))
        if place < 0:
            return data
        if self._errors == "strict":
            offset = chunk.offset + place
            message = (
                f"{name} is not UTF-8: byte 0x{data[place]:02x} at offset {offset} is wrong. Convert the file first, "
                "for example from Latin-1: iconv -f LATIN1 -t UTF-8, or allow it (--errors replace)"
            )
            with self._lock:
                self._invalid.append(_Invalid(source, offset, message))
            return data[:0]
        text, replaced = replace_invalid(data.tobytes())
        with self._lock:
            self.position.replaced += replaced
        return np.frombuffer(text, dtype=np.uint8)

    def _count(self, table: WordCounts, data: Bytes) -> None:
        for length in self._cutter.count(table, data):
            if not len(table):
                raise single_piece_error(length)
            self._spill(table)

    def _check_longest(self, table: WordCounts) -> None:
        longest = table.longest_word()
        if longest > self._longest_word:
            raise single_piece_error(longest)

    def _spill(self, table: WordCounts) -> None:
        with self._lock:
            number = self._num_runs
            self._num_runs += 1
        self._runs.write(table, number)
        table.clear()


def single_piece_error(size: int) -> TokenizerError:
    """What to say of a piece that is too long for the memory."""
    return TokenizerError(
        f"a single pretoken of the text has {size:,} bytes; training on it needs {BYTES_PER_PRETOKEN_BYTE * size:,} "
        "bytes of memory, more than the limit leaves. Raise --memory-limit, or remove what is not text"
    )


def replace_invalid(data: bytes) -> tuple[bytes, int]:
    """Text with U+FFFD in place of bytes that are not UTF-8, as Python's decoder has it, and how many were put."""
    text = data.decode(errors="replace").encode()
    return text, text.count(_REPLACEMENT) - data.count(_REPLACEMENT)
