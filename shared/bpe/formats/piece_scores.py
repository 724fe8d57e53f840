"""Merging by the scores of pieces, as SentencePiece does, and by the ranks of pairs, as tokenizer.json has them.

SentencePiece merges the two neighbors that give the best piece, the leftmost of equals; a rank is that of one pair. So
the pairs that give one piece must be ranked one after the other, and the order among these must not matter. It can
matter only if two such pairs are in a text at once, the right one ranked before the left one, and

- they overlap: both want the token between them; or
- merging one of them gives a part of a better piece, which takes a token from the other.

Of both there are few candidates in a vocabulary, each a short text: whether merging ever has these pairs side by side
in it is tried out, and depends on nothing around it.

The exception are the runs of one character, which Llama 2 has of spaces, all with one score: where every length up to
the longest is a piece, and no other piece has two of them, both orders make the longest runs from left to right. Of
them, it is tried out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from shared.bpe.errors import TokenizerError
from shared.system.errors import shown

Pair = tuple[str, str]

_RUNS_TRIED = 4  # times the longest run


def merges_by_score(scores: Mapping[str, float]) -> list[Pair]:
    """The pairs of pieces by rank, in the order of Hugging Face's converter: of one piece, longer left parts first.

    Raises:
        TokenizerError: Ranks would merge some text in another way than the scores; names the pieces.
    """
    found = [(score, pair) for piece, score in scores.items() for pair in _splits(piece, scores)]
    found.sort(key=lambda entry: (entry[0], len(entry[1][0]), len(entry[1][1])), reverse=True)
    merges = [pair for _, pair in found]
    levels = scores_by_rank(scores, merges)
    made = sorted(levels, key=lambda piece: scores[piece], reverse=True)
    for _, equals in groupby(made, key=lambda piece: scores[piece]):
        first, *others = equals
        for other in others:
            if levels[other] != levels[first]:
                raise TokenizerError(f"the pieces {shown(first)} and {shown(other)} have the same score, so no order")
    return merges


def scores_by_rank(pieces: Collection[str], merges: Sequence[Pair]) -> dict[str, float]:
    """Scores of the pieces that merges give, by which SentencePiece merges every text as the ranks do: 0, -1, ...

    Raises:
        TokenizerError: There are none; names the pieces.
    """
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    pairs: dict[str, list[Pair]] = {}
    for pair in sorted(ranks, key=lambda pair: ranks[pair]):
        pairs.setdefault("".join(pair), []).append(pair)
    for piece in pieces:
        missing = [pair for pair in _splits(piece, pieces) if pair not in ranks]
        if missing:
            raise TokenizerError(f"there is no merge of {shown(missing[0])}, although {shown(piece)} is a piece")
    scores: dict[str, float] = {}
    for level, equals in enumerate(_levels(pairs, ranks)):
        if len(equals) > 1:
            _check_runs(equals, ranks, pairs)
        scores |= dict.fromkeys(equals, -float(level))
    _check_pairs(pairs, ranks, scores)
    return scores


def _splits(piece: str, known: Collection[str]) -> list[Pair]:
    halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
    return [(left, right) for left, right in halves if left in known and right in known]


def _levels(pairs: Mapping[str, Sequence[Pair]], ranks: Mapping[Pair, int]) -> Iterator[list[str]]:
    """The pieces by rank; together those whose ranks are mixed, and runs of a character after mixed runs of it."""
    level: list[str] = []
    last = -1
    for piece, own in pairs.items():
        continues_runs = len(level) > 1 and {*piece} == {*level[0]} == {piece[0]}
        if level and ranks[own[0]] > last and not continues_runs:
            yield level
            level = []
        level.append(piece)
        last = max(last, ranks[own[-1]])
    if level:
        yield level


def _check_runs(equals: Sequence[str], ranks: Mapping[Pair, int], pairs: Iterable[str]) -> None:
    character, longest = equals[0][0], max(map(len, equals))
    are_runs = {*equals} == {character * length for length in range(2, longest + 1)}
    others = {*pairs} - {*equals}
    if not are_runs or any(character * 2 in piece for piece in others):
        raise TokenizerError(
            f"the merges that give {shown(equals[0])} and {shown(equals[1])} are mixed, so no score fits"
        )
    for length in range(_RUNS_TRIED * longest):
        *_, merged = _steps(character * length, ranks)
        whole, rest = divmod(length, longest)
        if merged != [character * longest] * whole + [character * rest] * (rest > 0):
            raise TokenizerError(f"{length} times {shown(character)} are not merged from left to right")


def _check_pairs(pairs: Mapping[str, Sequence[Pair]], ranks: Mapping[Pair, int], scores: Mapping[str, float]) -> None:
    """Try out the texts in which the order of the pairs of one piece may matter."""
    better: dict[str, list[str]] = {piece: [] for piece in pairs}
    for piece in pairs:
        for at in range(1, len(piece)):
            for part in {piece[:at], piece[at:]}:
                if part in better and scores[part] < scores[piece]:
                    better[part].append(piece)
    for piece, own in pairs.items():
        for number, earlier in enumerate(own):
            for later in own[number + 1 :]:
                for text, reason in _candidates(piece, later, earlier, better[piece]):
                    if any(state[:2] == [*later] and state[-2:] == [*earlier] for state in _steps(text, ranks)):
                        raise TokenizerError(f"of the merges that give {shown(piece)}, {reason} in {shown(text)}")


def _candidates(piece: str, left: Pair, right: Pair, better: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Texts that begin with one pair of a piece and end with another, which disturb each other."""
    if left[1] == right[0]:
        yield left[0] + left[1] + right[1], "two overlap"
    for other in better:
        if other.startswith(piece) and other.endswith(right[0]):
            yield other + right[1], f"one takes a part of another for {shown(other)}"
        if other.endswith(piece) and other.startswith(left[1]):
            yield left[0] + other, f"one takes a part of another for {shown(other)}"


def _steps(text: str, ranks: Mapping[Pair, int]) -> Iterator[list[str]]:
    """How a text is merged, from its characters on."""
    state = [*text]
    while True:
        yield state
        found = [(ranks[pair], at) for at, pair in enumerate(pairwise(state)) if pair in ranks]
        if not found:
            return
        _, at = min(found)
        state = [*state[:at], state[at] + state[at + 1], *state[at + 2 :]]
