"""Counting the pretokens of a corpus on all cores, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import SourceError, TokenizerError
from shared.bpe.kernels import pretoken_table as kernel
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.training.config import TrainingConfig
from shared.bpe.training.corpus import Bytes, Chunk, Errors, Source, read_error, replace_invalid
from shared.bpe.training.layout import Partitions
from shared.bpe.training.memory import BYTES_PER_PRETOKEN_BYTE, MemoryBudget
from shared.bpe.training.pretoken_counts import PretokenCounts
from shared.bpe.training.pretokenizers import Pretokenizer, RegexPretokenizer, ScannerPretokenizer
from shared.bpe.training.spill import SpilledRuns
from shared.system.stages import Stage, no_stage
from shared.system.thread_pool import WorkPool, new_lock

# Called with the number of bytes counted so far.
BytesProgress = Callable[[int], None]

_TABLES_PER_PARTITION = 4  # a partition takes this fraction of the memory for tables


class _Invalid(NamedTuple):
    """Bytes that are not UTF-8; the smallest comes first in the corpus."""

    source: int
    offset: int
    message: str


class CorpusCounter:
    """Threads that take chunks from one iterator and count their pretokens, each in a table of its own.

    Attributes:
        bytes_counted: Bytes of the corpus counted so far.
        num_replaced: Number of U+FFFD that replaced invalid bytes.

    Args:
        pretokenizer: Splits chunks into pretokens.
        threads: Number of threads.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD, as in Python's decoder.
        budget: Memory for tables, chunks and a single pretoken.
        runs: Takes the tables that exceed their memory.
        stage: Called for each stage of the work, from any thread.
    """

    def __init__(
        self,
        pretokenizer: Pretokenizer,
        *,
        threads: int,
        errors: Errors,
        budget: MemoryBudget,
        runs: SpilledRuns,
        stage: Stage = no_stage,
    ):
        self.bytes_counted = 0
        self.num_replaced = 0
        self._pretokenizer = pretokenizer
        self._errors = errors
        self._table_bytes = budget.tables
        self._max_chunk = budget.chunks // threads
        self._max_pretoken = budget.pretoken
        self._runs = runs
        self._stage = stage
        self._num_runs = 0
        self._share_no_pretoken = False
        self._tables = [PretokenCounts(budget.tables // threads) for _ in range(threads)]
        self._lock = new_lock()
        self._stop = False
        self._invalid: list[_Invalid] = []

    def count(self, sources: Sequence[Source], progress: BytesProgress | None, should_stop: Callable[[], bool]) -> None:
        """Count all sources, or until `should_stop` returns True.

        Raises:
            SourceError: A source cannot be read, or holds bytes that are not UTF-8 (the first ones are named).
            TokenizerError: A single pretoken is too long for the memory limit.
        """
        chunks = self._chunks(sources)
        with WorkPool(len(self._tables)) as pool:
            try:
                work = partial(self._work, chunks, sources, progress, should_stop)
                tasks = [pool.submit(partial(work, table)) for table in self._tables]
                for task in tasks:
                    with self._stage("wait for other threads"):
                        pool.result(task)
            finally:
                self._stop = True  # for the other threads, whatever happened in this one
        if self._invalid:
            raise SourceError(min(self._invalid).message)

    def add(self, pretokens: kernel.Pretokens, edges: NDArray[np.int64]) -> None:
        """Add counts made elsewhere, in groups as of `PretokenCounts.grouped`; where this object counts nothing itself.

        Each thread adds groups of its own to a table of its own, so that the tables share no pretoken.
        """
        self._share_no_pretoken = True
        groups, threads = len(edges) - 1, len(self._tables)
        places = [int(edges[groups * number // threads]) * kernel.ENTRY_SIZE for number in range(threads + 1)]
        with WorkPool(threads) as pool:
            tasks = [
                pool.submit(partial(self._add, table, kernel.Pretokens(pretokens.entries[begin:end], pretokens.arena)))
                for table, (begin, end) in zip(self._tables, pairwise(places), strict=True)
            ]
            for task in tasks:
                pool.result(task)

    def _add(self, table: PretokenCounts, pretokens: kernel.Pretokens) -> None:
        table.max_bytes = None
        table.add(pretokens)
        if table.nbytes > self._table_bytes // _TABLES_PER_PARTITION // len(self._tables):
            self._spill(table)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of pretoken counts on disk."""
        return self._runs.nbytes

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing was written to disk."""
        return not self._num_runs

    def partitions(self) -> Partitions:
        """All pretokens with their counts over all threads and runs, in one table or several; may be called again."""
        if self.is_in_memory and self._share_no_pretoken:
            return lambda: iter(self._tables)
        if self.is_in_memory and self._fit_together():
            first, *others = self._tables
            first.max_bytes = None
            for table in others:
                first.add(table.pretokens)
            self._tables = [first]
            return lambda: iter([first])
        self.spill()
        share = max(1, self._table_bytes // _TABLES_PER_PARTITION)
        return lambda: self._runs.partitions(-(-self._runs.nbytes // share))

    def spill(self) -> None:
        """Write all counts to disk."""
        for table in self._tables:
            if len(table):
                self._spill(table)

    def _fit_together(self) -> bool:
        """Whether the tables can be joined: at worst, in one that is as large as all and has just become too small."""
        return 4 * sum(table.nbytes for table in self._tables) <= self._table_bytes

    def _chunks(self, sources: Sequence[Source]) -> Iterator[tuple[int, Chunk]]:
        for number, source in enumerate(sources):
            try:
                for chunk in self._pretokenizer.chunks(source, 0, self._max_chunk):
                    yield number, chunk
            except OSError as error:
                raise read_error(source.name, error) from None

    def _work(
        self,
        chunks: Iterator[tuple[int, Chunk]],
        sources: Sequence[Source],
        progress: BytesProgress | None,
        should_stop: Callable[[], bool],
        table: PretokenCounts,
    ) -> None:
        try:
            while True:
                with self._lock:
                    if self._stop or self._invalid or should_stop():
                        return
                    with self._stage("read"):
                        item = next(chunks, None)
                if item is None:
                    return
                number, chunk = item
                data = self._valid(chunk, number, sources[number].name)
                with self._stage("split and count pretokens", chunk.size):
                    self._count(table, data)
                if chunk.size > self._max_pretoken:
                    self._check_longest(table)
                with self._lock:
                    self.bytes_counted += chunk.size
                    if progress is not None:
                        progress(self.bytes_counted)
        except BaseException:
            self._stop = True
            raise

    def _valid(self, chunk: Chunk, source: int, name: str) -> Bytes:
        """The bytes of a chunk, invalid ones replaced if they may be; nothing if they may not."""
        with self._stage("read", chunk.size):
            data = chunk.read()
        with self._stage("check UTF-8", chunk.size):
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
        text, num_replaced = replace_invalid(data.tobytes())
        with self._lock:
            self.num_replaced += num_replaced
        return np.frombuffer(text, dtype=np.uint8)

    def _count(self, table: PretokenCounts, data: Bytes) -> None:
        for length in self._pretokenizer.count(table, data):
            if not len(table):
                raise _too_long(length)
            self._spill(table)

    def _check_longest(self, table: PretokenCounts) -> None:
        longest = table.max_pretoken_bytes()
        if longest > self._max_pretoken:
            raise _too_long(longest)

    def _spill(self, table: PretokenCounts) -> None:
        with self._lock:
            number = self._num_runs
            self._num_runs += 1
        with self._stage("write counts to disk"):
            self._runs.write(table, number)
        table.clear()


def counter_for(
    config: TrainingConfig, budget: MemoryBudget, runs: SpilledRuns, *, threads: int, stage: Stage = no_stage
) -> CorpusCounter:
    """The counter of a training."""
    name = config.pattern_name
    return CorpusCounter(
        ScannerPretokenizer(name, config.special_tokens)
        if name is not None
        else RegexPretokenizer(config.expression, config.special_tokens),
        threads=1 if name is None else threads,
        errors=config.errors,
        budget=budget,
        runs=runs,
        stage=stage,
    )


def _too_long(size: int) -> TokenizerError:
    return TokenizerError(
        f"a single pretoken of the text has {size:,} bytes; training on it needs {BYTES_PER_PRETOKEN_BYTE * size:,} "
        "bytes of memory, more than the limit leaves. Raise --memory-limit, or remove what is not text"
    )
