"""The merges that make a token from its bytes, or from its characters with byte fallback, as a tree."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from shared.bpe.encoding.merging import Merge, merge_by_heap
from shared.bpe.vocabulary import Vocabulary

_NO_ID = -1


class TreeNode(NamedTuple):
    """A token within a token.

    Attributes:
        depth: 0 for a root.
        id: Its id; None for a byte or character that has no token.
        start: Its first byte in the token.
        end: The byte after its last.
        rank: That of the merge that makes it, counted from 0; None for a byte or character.
    """

    depth: int
    id: int | None
    start: int
    end: int
    rank: int | None


class MergeTree:
    """Merges the bytes of tokens as encoding merges a pretoken, and keeps what was merged."""

    def __init__(self, vocabulary: Vocabulary):
        self._units_of = vocabulary.units_of
        self._ids = vocabulary.ids
        self._merges = _Merges(vocabulary)

    def of(self, token: bytes) -> list[TreeNode]:
        """The nodes in preorder: each before its left part, and that before its right part.

        There is one root, the token itself, where merging these bytes leaves one token, and several where it does not:
        such a token is never the result of merges. A tree may be as deep as the token has bytes.
        """
        units = self._units_of(token)
        ids = [self._ids.get(unit, _NO_ID) for unit in units]
        history: list[Merge] = []
        merge_by_heap(ids, self._merges, history)
        parts: list[_Part | None] = [*map(_Part, ids, accumulate(map(len, units)))]
        return [*_preorder(parts, history)]


class _Merges(Mapping[tuple[int, int], tuple[int, int]]):
    """The merges by pair, with the memory of ranks alone. Of a pair listed twice the last counts, as in `tables`."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}

    def __getitem__(self, pair: tuple[int, int]) -> tuple[int, int]:
        rank = self._ranks[pair]
        left, right = pair
        tokens = self._vocabulary.tokens
        return rank, self._vocabulary.ids[tokens[left] + tokens[right]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


class _Part(NamedTuple):
    """A byte or character, or the result of a merge of two parts."""

    id: int
    end: int
    rank: int | None = None
    left: "_Part | None" = None
    right: "_Part | None" = None


def _preorder(parts: list[_Part | None], history: list[Merge]) -> Iterator[TreeNode]:
    for merge in history:
        left, right = parts[merge.position], parts[merge.absorbed]
        assert right is not None
        parts[merge.position] = _Part(merge.id, right.end, merge.rank, left, right)
        parts[merge.absorbed] = None
    # No recursion: a tree may be deeper than Python's stack.
    waiting = [(0, part) for part in reversed(parts) if part is not None]
    start = 0
    while waiting:
        depth, part = waiting.pop()
        yield TreeNode(depth, None if part.id == _NO_ID else part.id, start, part.end, part.rank)
        if part.left is None or part.right is None:
            start = part.end
        else:
            waiting += [(depth + 1, part.right), (depth + 1, part.left)]
