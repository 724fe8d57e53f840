"""Which documents are duplicates, from what the first pass has kept of them; in bounded memory.

Documents with the same key, of which those of equal text have the same digest and those of similar text have a band of
their signatures in common, are compared with the first of them. A document that matches leaves; those that do not match
are compared among themselves in the same way. Bands follow one another, each on the documents that are left. So every
document that leaves matches an earlier one, and no two that stay are found to match.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.cleaning.examination import Examined
from trainer.cleaning.signatures import HASHES

Ids = NDArray[np.int64]
Similarity = Callable[[Ids, Ids], NDArray[np.float64]]

STAYS, DUPLICATE, NEAR_DUPLICATE, FILTERED = range(4)

_BYTES_PER_KEY = 48  # a document's key and number, sorted, and what sorting takes
_PAIRS_AT_ONCE = 1 << 15
_ROUNDS = 128  # after which what still differs from all before it stays
_EXAMPLES = 20


@dataclass(frozen=True)
class Match:
    """A document that left, and the earlier one that it matched.

    Attributes:
        document: Its number, from 0.
        earlier: That of the other.
        similarity: Estimated; 1 of equal texts.
    """

    document: int
    earlier: int
    similarity: float


@dataclass
class Verdicts:
    """What became of each document.

    Attributes:
        state: One of the numbers above for each document.
        examples: The first of the near-duplicates.
    """

    state: NDArray[np.uint8]
    examples: list[Match] = field(default_factory=list)


class DuplicateFinder:
    """Finds duplicates among the documents of all parts.

    Args:
        parts: What the first pass has kept.
        threshold: The least similarity of near-duplicates; 1 for equal documents only.
        memory: Bytes that a pass may take.
    """

    def __init__(self, parts: Sequence[Examined], threshold: float, memory: int) -> None:
        self._parts = parts
        self._bands = parts[0].bands if parts else 0
        self._threshold = threshold
        self._firsts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        count = int(self._firsts[-1])
        self._passes = max(1, -(-count * _BYTES_PER_KEY // max(1, memory)))
        left = [np.where(part.reasons() > 0, FILTERED, STAYS).astype(np.uint8) for part in parts]
        self.verdicts = Verdicts(np.concatenate([np.zeros(0, np.uint8), *left]))

    @property
    def steps(self) -> int:
        """Passes over the keys."""
        return self._passes * (1 + self._bands)

    def find(self) -> Iterator[int]:
        """Decide on all documents; yields after each pass how many there were."""
        step = 0
        for band in range(-1, self._bands):
            for number in range(self._passes):
                if band < 0:
                    self._compare(_first_halves, number, self._equality, DUPLICATE)
                else:
                    self._compare(partial(Examined.keys, band=band), number, self._similarity, NEAR_DUPLICATE)
                step += 1
                yield step

    def _compare(
        self, column: Callable[[Examined], NDArray[np.uint64]], number: int, similarity: Similarity, verdict: int
    ) -> None:
        """Compare the documents whose keys belong to one pass."""
        ids, keys = self._keys(column, number, skip_zero=verdict == NEAR_DUPLICATE)
        order = np.argsort(keys, kind="stable")
        ids, keys = ids[order], keys[order]
        for _ in range(_ROUNDS):
            is_first = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, bool)
            group = np.cumsum(is_first) - 1
            sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
            shared = sizes[group] > 1
            if not shared.any():
                return
            firsts = ids[is_first][group]
            candidates = shared & ~is_first
            documents, earlier = ids[candidates], firsts[candidates]
            values = np.concatenate(
                [
                    similarity(documents[begin : begin + _PAIRS_AT_ONCE], earlier[begin : begin + _PAIRS_AT_ONCE])
                    for begin in range(0, len(documents), _PAIRS_AT_ONCE)
                ]
            )
            matched = values >= self._threshold
            self.verdicts.state[documents[matched]] = verdict
            if verdict == NEAR_DUPLICATE:
                self._keep_examples(documents[matched], earlier[matched], values[matched])
            rest = candidates.copy()
            rest[candidates] = ~matched
            ids, keys = ids[rest], keys[rest]

    def _keys(
        self, column: Callable[[Examined], NDArray[np.uint64]], number: int, *, skip_zero: bool
    ) -> tuple[Ids, NDArray[np.uint64]]:
        """The documents that still stay and whose keys belong to a pass, and the keys."""
        ids: list[Ids] = [np.zeros(0, np.int64)]
        keys: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        for first, part in zip(self._firsts[:-1].tolist(), self._parts, strict=True):
            values = column(part)
            chosen = self.verdicts.state[first : first + len(part)] == STAYS
            if self._passes > 1:
                chosen &= values % np.uint64(self._passes) == number
            if skip_zero:
                chosen &= values != 0
            ids.append(np.flatnonzero(chosen) + first)
            keys.append(np.asarray(values[chosen]))
        return np.concatenate(ids), np.concatenate(keys)

    def _keep_examples(self, documents: Ids, earlier: Ids, values: NDArray[np.float64]) -> None:
        """Those of the first documents, which do not depend on the passes."""
        first = np.argsort(documents)[:_EXAMPLES]
        found = zip(documents[first].tolist(), earlier[first].tolist(), values[first].tolist(), strict=True)
        both = [*self.verdicts.examples, *(Match(*each) for each in found)]
        self.verdicts.examples = sorted(both, key=lambda match: match.document)[:_EXAMPLES]

    def _equality(self, one: Ids, other: Ids) -> NDArray[np.float64]:
        rows = [self._rows(ids, Examined.digests, 2, np.uint64) for ids in (one, other)]
        equal: NDArray[np.float64] = (rows[0] == rows[1]).all(axis=1).astype(np.float64)
        return equal

    def _similarity(self, one: Ids, other: Ids) -> NDArray[np.float64]:
        rows = [self._rows(ids, Examined.signatures, HASHES, np.uint16) for ids in (one, other)]
        agreement: NDArray[np.float64] = (rows[0] == rows[1]).mean(axis=1)
        return agreement

    def _rows(self, ids: Ids, column: Callable[[Examined], NDArray[Any]], width: int, dtype: type) -> NDArray[Any]:
        """The values of some documents, gathered from their parts."""
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(ids[order], self._firsts)
        rows: NDArray[Any] = np.empty((len(ids), width), dtype)
        for number in np.flatnonzero(np.diff(places)).tolist():
            chosen = order[places[number] : places[number + 1]]
            rows[chosen] = column(self._parts[number])[ids[chosen] - self._firsts[number]]
        return rows


def _first_halves(part: Examined) -> NDArray[np.uint64]:
    return part.digests()[:, 0]
