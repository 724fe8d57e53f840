"""Byte-pair merging of one pretoken: always the pair of lowest rank, and of equal ranks the leftmost.

Ranks are the order in which merges were trained (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909, algorithm 1).
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

# A pair of ids -> (rank of the merge, id of the merged token).
MergeTable = Mapping[tuple[int, int], tuple[int, int]]


class Merge(NamedTuple):
    """A merge of a pretoken: `position` takes the bytes of `absorbed`, the place where the right token began."""

    rank: int
    id: int
    position: int
    absorbed: int


# Above this length the heap is faster than scanning the pretoken once for each merge.
_SHORT = 128


def merge_pretoken(ids: list[int], merges: MergeTable) -> list[int]:
    """Merge the ids of a pretoken's bytes until no pair of adjacent ids has a merge."""
    return merge_by_scanning(ids, merges) if len(ids) <= _SHORT else merge_by_heap(ids, merges)


def merge_by_scanning(ids: list[int], merges: MergeTable) -> list[int]:
    """`merge_pretoken` in quadratic time."""
    ids = list(ids)
    while True:
        candidates = [(merges[pair], position) for position, pair in enumerate(pairwise(ids)) if pair in merges]
        if not candidates:
            return ids
        (_, merged), position = min(candidates)
        ids[position : position + 2] = [merged]


def merge_by_heap(ids: list[int], merges: MergeTable, history: list[Merge] | None = None) -> list[int]:
    """`merge_pretoken` in time n log n: a linked list of ids, and a heap of pairs, some of them outdated.

    Args:
        ids: Those of the pretoken's bytes.
        merges: Rank and result by pair.
        history: Each merge is appended to it.
    """
    alive: list[int | None] = list(ids)
    end = len(ids)
    following = list(range(1, end + 1))
    preceding = list(range(-1, end - 1))
    heap = [(*merges[pair], position) for position, pair in enumerate(pairwise(ids)) if pair in merges]
    heapify(heap)

    def merge_at(position: int) -> tuple[int, int] | None:
        left, right = alive[position], following[position]
        if left is None or right == end:
            return None
        return merges.get((left, alive[right]))  # type: ignore[arg-type]  # what follows a live token is alive

    while heap:
        rank, merged, position = heappop(heap)
        if merge_at(position) != (rank, merged):
            continue
        absorbed = following[position]
        if history is not None:
            history.append(Merge(rank, merged, position, absorbed))
        alive[position], alive[absorbed] = merged, None
        following[position] = following[absorbed]
        if following[position] < end:
            preceding[following[position]] = position
        for changed in (preceding[position], position):
            if changed >= 0 and (found := merge_at(changed)) is not None:
                heappush(heap, (*found, changed))
    return [token for token in alive if token is not None]
