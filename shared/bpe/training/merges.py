"""Training merges on pretoken counts with the compiled kernels: memory, thresholds and rebuilding."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import TokenizerError
from shared.bpe.kernels import merging, pairs, rebuilding, spellings
from shared.bpe.training.layout import BYTES_PER_POSITION, Partitions, PretokenLayout, on_threads

Pair = tuple[int, int]
# Called with the number of merges trained and wanted.
MergeProgress = Callable[[int, int], None]

_STEP = 256  # merges between two calls of `progress`: some milliseconds
_SKETCH_SIZE = 1 << 20
# The last merge's count is about 1/6 to 1/15 of occurrences / vocabulary size; the first threshold is below that.
_THRESHOLD_DIVISOR = 40
_MAX_POSITIONS = (1 << 31) - 1
# Text needs 1.0 to 1.3: at the start each position begins a pair, and the space of merged pairs is reused.
_PLACES_PER_POSITION = 1.5


class LayoutTooLargeError(TokenizerError):
    """The pretokens do not fit into the memory that is left for merging."""


@dataclass(frozen=True)
class TrainedMerges:
    """The merges of a corpus.

    Attributes:
        tokens: Byte strings by id: the 256 bytes, then one for each merge that made a new token.
        merges: Pairs of ids by rank.
        uses: Occurrences of each token in the corpus when all merges are applied.
    """

    tokens: list[bytes]
    merges: list[Pair]
    uses: NDArray[np.int64]


class MergeTrainer:
    """The distinct pretokens of a corpus, and the merges trained on them so far.

    Args:
        partitions: The pretokens; iterated twice, and not kept.
        num_merges: Tokens wanted beyond the 256 bytes.
        reserved: Byte strings that no merge may make.
        min_count: Pretokens that occur less often are ignored.
        max_bytes: Memory limit; None for no limit.
        threads: Number of threads that lay the pretokens out and count byte pairs; merging itself uses one.

    Raises:
        LayoutTooLargeError: The pretokens do not fit into `max_bytes`.
    """

    def __init__(
        self,
        partitions: Partitions,
        num_merges: int,
        *,
        reserved: Iterable[bytes] = (),
        min_count: int = 1,
        max_bytes: int | None = None,
        threads: int = 1,
    ):
        self._vocab_size = 256 + num_merges
        self._reserved = [spelling for spelling in reserved if len(spelling) > 1]
        prefix = bytes(range(256)) + b"".join(self._reserved)
        self._layout = PretokenLayout(partitions, prefix, min_count=min_count, threads=threads, max_bytes=max_bytes)
        self.totals = self._layout.totals
        self._check_size(max_bytes, min_count)
        self._layout.write()
        self._make_arrays()
        self._merges: list[Pair] = []
        self._spellings_by_id = [bytes([byte]) for byte in range(256)]
        self._known_spellings = set(self._spellings_by_id)

    def train(self, progress: MergeProgress | None = None) -> TrainedMerges:
        """Train all merges.

        Raises:
            TokenizerError: A merge would make a reserved byte string.
        """
        self._count_byte_pairs()
        outcome = merging.DONE
        while int(self._state[pairs.NUM_TOKENS]) < self._vocab_size:
            if outcome == merging.DRY:
                if self._state[pairs.THRESHOLD] == 1:
                    break
                self._state[pairs.THRESHOLD] = max(1, int(self._state[pairs.THRESHOLD]) // 4)
            if outcome != merging.DONE:
                self._rebuild()
            outcome = self._step()
            if progress is not None:
                progress(int(self._state[pairs.NUM_TOKENS]) - 256, self._vocab_size - 256)
        return TrainedMerges(self._spellings_by_id, self._merges, self._tokens.uses[: len(self._spellings_by_id)])

    def _check_size(self, max_bytes: int | None, min_count: int) -> None:
        totals = self.totals
        needed = int(totals.positions * (BYTES_PER_POSITION + 4 * _PLACES_PER_POSITION)) + self._fixed_bytes()
        if totals.positions <= _MAX_POSITIONS and (max_bytes is None or needed <= max_bytes):
            return
        limit = "" if max_bytes is None else f"; the memory limit leaves {max_bytes:,}"
        raise LayoutTooLargeError(
            f"the text has {totals.distinct:,} distinct pretokens of {totals.positions:,} bytes in total, and training "
            f"merges on them needs {needed:,} bytes of memory{limit}. Ignore rare pretokens "
            f"(--min-count {min_count + 1} or more), raise --memory-limit, or remove what is not text, such as "
            "base64 or long runs of digits"
        )

    def _fixed_bytes(self) -> int:
        pair = pairs.PAIR.itemsize + pairs.HEAP_ENTRY.itemsize + 4 * 4
        token = pairs.TOKEN.itemsize + 2 * merging.NEIGHBOR.itemsize + 64
        return self._max_pairs() * pair + self._vocab_size * token + 8 * _SKETCH_SIZE

    def _max_pairs(self) -> int:
        return max(1 << 17, min(1 << 22, 8 * self._vocab_size))

    def _make_arrays(self) -> None:
        max_pairs, num_tokens = self._max_pairs(), self._vocab_size + len(self._reserved)
        self._tokens = pairs.Tokens(
            text=self._layout.arrays.text,
            entries=np.zeros(num_tokens, dtype=pairs.TOKEN),
            spellings=_index(4 * num_tokens),
            uses=np.zeros(self._vocab_size, dtype=np.int64),
        )
        self._pairs = pairs.Pairs(
            entries=np.empty(max_pairs, dtype=pairs.PAIR),
            index=_index(2 * max_pairs),
            places=np.empty(int(_PLACES_PER_POSITION * self.totals.positions) + 1024, dtype=np.int32),
            heap=np.empty(max_pairs, dtype=pairs.HEAP_ENTRY),
            state=np.zeros(pairs.STATE_SIZE, dtype=np.int64),
        )
        self._left, self._right = _neighbors(self._vocab_size), _neighbors(self._vocab_size)
        self._new_merges = np.empty(2 * _STEP, dtype=np.int32)
        self._sketch = np.empty(_SKETCH_SIZE, dtype=np.int64)
        self._state = self._pairs.state
        self._state[pairs.NUM_TOKENS] = 256
        self._state[pairs.THRESHOLD] = max(1, self.totals.occurrences // (_THRESHOLD_DIVISOR * self._vocab_size))
        # Reserved spellings are tokens behind all that can be trained.
        ids = np.concatenate([np.arange(256), self._vocab_size + np.arange(len(self._reserved))])
        spellings.add_tokens(self._tokens, ids, np.array([1] * 256 + [*map(len, self._reserved)]))

    def _count_byte_pairs(self) -> None:
        arrays, sections = self._layout.arrays, self._layout.sections()
        counts = np.zeros((len(sections), rebuilding.NUM_BYTE_PAIRS), dtype=rebuilding.BYTE_PAIR)
        uses = np.zeros((len(sections), 256), dtype=np.int64)
        numbers = range(len(sections))
        on_threads(lambda n: rebuilding.count_byte_pairs(arrays, *sections[n], counts[n], uses[n]), numbers)
        rebuilding.enter_byte_pairs(counts.reshape(-1), self._pairs)
        places = self._pairs.places
        on_threads(lambda n: rebuilding.fill_byte_places(arrays.ids, *sections[n], counts[n], places), numbers)
        self._tokens.uses[:256] = uses.sum(axis=0)

    def _rebuild(self) -> None:
        if self._state[pairs.NUM_TOKENS] == 256:
            self._count_byte_pairs()
            return
        while not rebuilding.rebuild_pairs(self._layout.arrays, self._tokens, self._pairs, self._sketch):
            self._state[pairs.THRESHOLD] *= 2

    def _step(self) -> int:
        self._state[pairs.NUM_MERGES] = 0
        arrays = self._layout.arrays
        outcome = int(
            merging.learn_merges(arrays, self._tokens, self._pairs, self._left, self._right, self._new_merges)
        )
        for left, right in self._new_merges[: 2 * int(self._state[pairs.NUM_MERGES])].reshape(-1, 2).tolist():
            self._merges.append((left, right))
            spelling = self._spellings_by_id[left] + self._spellings_by_id[right]
            if spelling not in self._known_spellings:
                self._spellings_by_id.append(spelling)
                self._known_spellings.add(spelling)
        if outcome == merging.RESERVED:
            spelling = self._spellings_by_id[-1]
            raise TokenizerError(
                f"a merge makes the token {spelling!r}, which is also a special token; rename the special token"
            )
        return outcome


def _index(minimum: int) -> NDArray[np.int32]:
    return np.full(1 << (minimum - 1).bit_length(), pairs.ABSENT, dtype=np.int32)


def _neighbors(vocab_size: int) -> merging.Neighbors:
    return merging.Neighbors(np.zeros(vocab_size, dtype=merging.NEIGHBOR), np.zeros(vocab_size + 1, dtype=np.int64))
