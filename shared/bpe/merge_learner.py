"""Learning merges from word counts with the compiled kernels: memory, thresholds and rebuilding."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.bpe.errors import TokenizerError
from shared.bpe.kernels import layout, merging, pairs, rebuilding, spellings
from shared.bpe.word_counts import WordCounts

Pair = tuple[int, int]
# Called with the merges learnt and the merges wanted.
Progress = Callable[[int, int], None]
# The distinct words in one table or, one after the other, in several that share no word.
Partitions = Callable[[], Iterator[WordCounts]]

_STEP = 256  # merges between two calls of `progress`: some milliseconds
_SKETCH_SIZE = 1 << 20
# The count of the last merge is about a sixth to a fifteenth of the words by the tokens; the threshold begins below it.
_THRESHOLD_DIVISOR = 40
_MAX_DIGIT = (1 << 16) - 1
_MAX_POSITIONS = (1 << 31) - 1
# text, ids, weights, and the places twice: once at the start, once for the pairs that are born
_BYTES_PER_POSITION = 1 + 4 + 8 / layout.GROUP + 2 * 4


@dataclass(frozen=True)
class WordTotals:
    """What was counted, and what merging takes up.

    Attributes:
        distinct: Distinct words.
        words: Occurrences.
        num_bytes: Bytes of all occurrences.
        positions: Of the layout.
        left_out: Occurrences of words below the minimum count, which are in none of the others.
    """

    distinct: int = 0
    words: int = 0
    num_bytes: int = 0
    positions: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class LearntMerges:
    """The merges of a corpus, and how it uses the tokens.

    Attributes:
        tokens: Byte strings by id: the 256 bytes, then one for each merge that made a new token.
        merges: Pairs of ids by rank.
        uses: Occurrences of each token in the counted words when all merges are applied.
    """

    tokens: list[bytes]
    merges: list[Pair]
    uses: NDArray[np.int64]


class MergeLearner:
    """One corpus of distinct words, and the merges learnt from it so far.

    Args:
        partitions: The words. They are gone through twice, and not kept.
        num_merges: Tokens wanted beyond the 256 bytes.
        reserved: Byte strings that no merge may give.
        min_count: Words that occur less often are left out.
        max_bytes: Memory that may be taken; None for as much as it needs.

    Raises:
        TokenizerError: If the words do not fit.
    """

    def __init__(
        self,
        partitions: Partitions,
        num_merges: int,
        *,
        reserved: Iterable[bytes] = (),
        min_count: int = 1,
        max_bytes: int | None = None,
    ):
        self._vocab_size = 256 + num_merges
        self._reserved = [spelling for spelling in reserved if len(spelling) > 1]
        self._prefix = bytes(range(256)) + b"".join(self._reserved)
        self._orders: list[NDArray[np.int64]] = []
        self.totals = self._measure(partitions, min_count)
        self._check_size(max_bytes, min_count)
        self._lay_out(partitions)
        self._orders.clear()
        self._make_arrays()
        self._merges: list[Pair] = []
        self._spellings_by_id = [bytes([byte]) for byte in range(256)]
        self._spelt = set(self._spellings_by_id)

    def learn(self, progress: Progress | None = None) -> LearntMerges:
        """Learn all merges.

        Raises:
            TokenizerError: If a merge would give a reserved byte string.
        """
        outcome = merging.FULL
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
        return self._result()

    def _measure(self, partitions: Partitions, min_count: int) -> WordTotals:
        distinct = words = num_bytes = all_words = 0
        position = _next_group(len(self._prefix) + 1)
        for table in partitions():
            order = _most_frequent_first(table, min_count)
            self._orders.append(order)
            position, more_words, more_bytes = layout.measure(table.words, table.arena, order, position)
            distinct += len(order)
            words += more_words
            num_bytes += more_bytes
            all_words += int(table.amounts().sum())
        return WordTotals(distinct, words, num_bytes, position, left_out=all_words - words)

    def _check_size(self, max_bytes: int | None, min_count: int) -> None:
        totals = self.totals
        needed = int(totals.positions * _BYTES_PER_POSITION) + self._fixed_bytes()
        if totals.positions <= _MAX_POSITIONS and (max_bytes is None or needed <= max_bytes):
            return
        limit = "" if max_bytes is None else f"; {max_bytes:,} are left of the memory limit"
        raise TokenizerError(
            f"the text has {totals.distinct:,} distinct words of {totals.positions:,} bytes in all, and learning "
            f"merges from them takes {needed:,} bytes of memory{limit}. Leave out rare words "
            f"(--min-count {min_count + 1} or more), allow more memory (--memory-limit), or take out what is not text, "
            "such as long runs of digits or base64"
        )

    def _fixed_bytes(self) -> int:
        pair = pairs.PAIR.itemsize + pairs.HEAP_ENTRY.itemsize + 4 * 4
        token = pairs.TOKEN.itemsize + 2 * merging.NEIGHBOUR.itemsize + 64
        return self._max_pairs() * pair + self._vocab_size * token + 8 * _SKETCH_SIZE

    def _max_pairs(self) -> int:
        return max(1 << 17, min(1 << 22, 16 * self._vocab_size))

    def _lay_out(self, partitions: Partitions) -> None:
        size = self.totals.positions
        text = np.empty(size + layout.SLACK, dtype=np.uint8)
        ids = np.empty(size + layout.SLACK, dtype=np.int32)
        self._weights = np.zeros(size // layout.GROUP + 1, dtype=np.int64)
        text[: len(self._prefix)] = np.frombuffer(self._prefix, dtype=np.uint8)
        position = _next_group(len(self._prefix) + 1)
        ids[:position] = layout.GAP
        for table, order in zip(partitions(), self._orders, strict=True):
            position = layout.lay_out(table.words, table.arena, order, position, text, ids, self._weights)
        self._text, self._ids = text[:size], ids[:size]

    def _make_arrays(self) -> None:
        self._tokens = np.zeros(self._vocab_size + len(self._reserved), dtype=pairs.TOKEN)
        self._spellings = _index(4 * len(self._tokens))
        self._pairs = np.empty(self._max_pairs(), dtype=pairs.PAIR)
        self._index = _index(2 * self._max_pairs())
        self._heap = np.empty(self._max_pairs(), dtype=pairs.HEAP_ENTRY)
        self._places = np.empty(2 * len(self._ids) + 1024, dtype=np.int32)
        self._neighbours = [np.zeros(self._vocab_size, dtype=merging.NEIGHBOUR) for _ in range(2)]
        self._touched = [np.zeros(self._vocab_size + 1, dtype=np.int64) for _ in range(2)]
        self._learnt = np.empty(2 * _STEP, dtype=np.int32)
        self._sketch = np.empty(_SKETCH_SIZE, dtype=np.int64)
        self._state = np.zeros(pairs.STATE_SIZE, dtype=np.int64)
        self._state[pairs.NUM_TOKENS] = 256
        self._state[pairs.THRESHOLD] = max(1, self.totals.words // (_THRESHOLD_DIVISOR * self._vocab_size))
        place = 0
        for number, length in enumerate([1] * 256 + [len(spelling) for spelling in self._reserved]):
            # Reserved spellings are tokens that come after all that can be learnt.
            token = number if number < 256 else self._vocab_size + number - 256
            spellings.describe_token(self._text, self._tokens, token, place, length)
            spellings.add_spelling(self._tokens, self._spellings, token)
            place += length

    def _rebuild(self) -> None:
        while not rebuilding.rebuild_pairs(
            self._text, self._ids, self._weights, self._tokens, self._pairs, self._index, self._places, self._heap,
            self._state, self._sketch,
        ):  # fmt: skip
            self._state[pairs.THRESHOLD] *= 2

    def _step(self) -> int:
        self._state[pairs.NUM_MERGES] = 0
        outcome = int(
            merging.learn_merges(
                self._text, self._ids, self._weights, self._tokens, self._spellings, self._pairs, self._index,
                self._places, self._heap, self._state, *self._neighbours, *self._touched, self._learnt,
                self._vocab_size, _STEP,
            )
        )  # fmt: skip
        for left, right in self._learnt[: 2 * int(self._state[pairs.NUM_MERGES])].reshape(-1, 2).tolist():
            self._merges.append((left, right))
            spelling = self._spellings_by_id[left] + self._spellings_by_id[right]
            if spelling not in self._spelt:
                self._spellings_by_id.append(spelling)
                self._spelt.add(spelling)
        if outcome == merging.RESERVED:
            raise TokenizerError(
                f"the text teaches the token {self._spellings_by_id[-1]!r}, which is also a special token; rename that one"
            )
        return outcome

    def _result(self) -> LearntMerges:
        uses = np.zeros(len(self._spellings_by_id), dtype=np.int64)
        rebuilding.count_uses(self._ids, self._weights, self._tokens, uses)
        return LearntMerges(self._spellings_by_id, self._merges, uses)


def _most_frequent_first(table: WordCounts, min_count: int) -> NDArray[np.int64]:
    """The numbers of the words that are frequent enough, in falling order of their counts."""
    amounts = table.amounts()
    # Numbers of 16 bits are sorted digit by digit, several times faster; few counts do not fit.
    rarity = _MAX_DIGIT - np.minimum(amounts, _MAX_DIGIT).astype(np.uint16)
    order = np.argsort(rarity, kind="stable")
    most = int(np.count_nonzero(rarity == 0))
    order[:most] = order[:most][np.argsort(~amounts[order[:most]], kind="stable")]
    return order[: int(np.count_nonzero(amounts >= min_count))]


def _next_group(position: int) -> int:
    return -(-position // layout.GROUP) * layout.GROUP


def _index(minimum: int) -> NDArray[np.int32]:
    return np.full(1 << (minimum - 1).bit_length(), pairs.ABSENT, dtype=np.int32)
