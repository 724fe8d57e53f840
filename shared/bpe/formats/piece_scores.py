"""Merging by the scores of pieces, as SentencePiece does, and by the ranks of pairs, as tokenizer.json has them.

SentencePiece merges the two neighbors that give the piece with the highest score, the leftmost of equals; a rank
belongs to one pair. Both give the same result, since a piece is always made from the same pair: nothing has been merged
across the ends of two neighbors that spell it, so they are the two tokens that merging its text by itself leaves before
the last merge. A piece therefore has the rank of that pair, other pairs that spell it are never merged, and a piece
whose text by itself does not become one token is never made.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from shared.bpe.errors import TokenizerError
from shared.system.errors import short_repr

Pair = tuple[str, str]


def merges_by_score(scores: Mapping[str, float]) -> list[Pair]:
    """The pairs of pieces by rank, in the order of Hugging Face's converter: of one piece, longer left parts first.

    Raises:
        TokenizerError: Two pieces have one score, so that places decide which is made; names them.
    """
    found = [
        (score, len(piece[:at]), len(piece[at:]), piece[:at], piece[at:])
        for piece, score in scores.items()
        for at in range(1, len(piece))
        if piece[:at] in scores and piece[at:] in scores
    ]
    found.sort(key=lambda entry: entry[:3], reverse=True)
    equals: defaultdict[float, set[str]] = defaultdict(set)
    for score, _, _, left, right in found:
        equals[score].add(left + right)
    for pieces in equals.values():
        if len(pieces) > 1 and not _are_runs(pieces, scores):
            first, second, *_ = sorted(pieces)
            raise TokenizerError(f"the pieces {short_repr(first)} and {short_repr(second)} have the same score")
    return [(left, right) for _, _, _, left, right in found]


def scores_by_rank(pieces: Collection[str], merges: Sequence[Pair]) -> dict[str, float]:
    """Scores of the pieces that merges give, by which SentencePiece merges every text as the ranks do: 0, -1, ...

    Raises:
        TokenizerError: SentencePiece would make a piece that no merge gives; names it.
    """
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    by_rank: dict[int, str] = {}
    for piece in pieces:
        parts, last = _merge_alone(piece, ranks)
        if len(parts) == 1 and last >= 0:
            by_rank[last] = piece
        elif len(parts) == 2:
            names = short_repr(parts)
            raise TokenizerError(f"{short_repr(piece)} is a piece, but there is no merge of its parts {names}")
    return {by_rank[rank]: -float(number) for number, rank in enumerate(sorted(by_rank))}


def _are_runs(pieces: Collection[str], known: Collection[str]) -> bool:
    """Whether pieces are runs of one character of every length, and others have no two of it, as spaces in Llama 2.

    Whether the leftmost or the longest is made first, they are then made from left to right, each as long as it can be.
    """
    character = next(iter(pieces))[0]
    runs = {character * length for length in range(2, len(pieces) + 2)}
    return {*pieces} == runs and not any(character * 2 in piece for piece in known if piece not in runs)


def _merge_alone(piece: str, ranks: Mapping[Pair, int]) -> tuple[list[str], int]:
    """The tokens that merging the characters of a piece gives, and the rank of the last merge; -1 for none."""
    parts, last = [*piece], -1
    while found := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        last, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts, last
