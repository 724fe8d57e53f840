"""Counts of a part of a corpus, made in any process on any machine, and how they get to the one that trains."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.bpe.kernels import pretoken_table as kernel
from shared.bpe.training.config import TrainingConfig
from shared.bpe.training.corpus import Source
from shared.bpe.training.counter import CorpusCounter, counter_for
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.spill import SpilledRuns


@dataclass(frozen=True)
class PartCounts:
    """The pretokens of a part.

    Attributes:
        tables: Their tables, and the edges of the groups in each; see `PretokenCounts.grouped`.
        bytes_counted: Bytes of its text.
        num_replaced: Number of U+FFFD that replaced invalid bytes.
    """

    tables: tuple[tuple[kernel.Pretokens, NDArray[np.int64]], ...]
    bytes_counted: int
    num_replaced: int

    def add_to(self, counter: CorpusCounter) -> None:
        """Add all counts to those of a whole corpus."""
        counter.bytes_counted += self.bytes_counted
        counter.num_replaced += self.num_replaced
        for pretokens, edges in self.tables:
            counter.add(pretokens, edges)


CountElsewhere = Callable[[TrainingConfig], Iterator[PartCounts]]
"""Counts all parts of a corpus, in any order."""


def count_part(source: Source, config: TrainingConfig, memory_limit: int | None = None) -> PartCounts:
    """Count the pretokens of a source, in this thread.

    Raises:
        SourceError: It cannot be read, or is not UTF-8 and must be.
        TokenizerError: The memory limit is too low for it.
    """
    with tempfile.TemporaryDirectory(prefix="ownlm-") as folder:
        counter = counter_for(config, MemoryBudget(memory_limit), SpilledRuns(Path(folder)), threads=1)
        counter.count([source], None, lambda: False)
        tables = tuple(table.grouped() for table in counter.partitions()())
    return PartCounts(tables, counter.bytes_counted, counter.num_replaced)
