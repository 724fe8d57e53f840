"""Ranks of pairs and scores of pieces: both give the same merges for every short text, or are refused."""

import itertools
import random
from collections.abc import Mapping

import pytest

from shared.bpe import TokenizerError
from shared.bpe.formats.piece_scores import Pair, merges_by_score, scores_by_rank

TEXTS = ["".join(text) for length in range(1, 8) for text in itertools.product("ab", repeat=length)]
LETTERS = {"a": -50.0, "b": -51.0}


def by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's rule as its source states it (bpe_model.cc): the best score, and of equals the leftmost."""
    parts = [*text]
    while True:
        found = [
            (-scores[pair], at) for at, pair in enumerate(map("".join, itertools.pairwise(parts))) if pair in scores
        ]
        if not found:
            return parts
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def by_rank(text: str, ranks: Mapping[Pair, int]) -> list[str]:
    parts = [*text]
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]
        if not found:
            return parts
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def some_pieces(draw: random.Random) -> list[str]:
    pieces = {"".join(draw.choices("ab", k=draw.choice([2, 2, 3, 3, 4, 5]))) for _ in range(draw.randrange(1, 8))}
    return draw.sample(sorted(pieces), len(pieces))


def test_ranks_merge_as_the_scores_that_they_were_made_of() -> None:
    draw = random.Random(1)
    for _ in range(40):
        scores = {piece: -float(number) for number, piece in enumerate(some_pieces(draw))} | LETTERS
        ranks = {pair: rank for rank, pair in enumerate(merges_by_score(scores))}
        for text in TEXTS:
            assert by_rank(text, ranks) == by_score(text, scores), (scores, text)


def test_scores_merge_as_the_ranks_that_they_were_made_of() -> None:
    """For any merges in any order, of which some pieces have none."""
    draw = random.Random(2)
    refused = 0
    for _ in range(80):
        known = [*some_pieces(draw), *LETTERS]
        splits = [(piece[:at], piece[at:]) for piece in known for at in range(1, len(piece))]
        merges = [pair for pair in splits if {*pair} <= {*known} and draw.random() < 0.8]
        draw.shuffle(merges)
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        try:
            scores = scores_by_rank(known, merges)
        except TokenizerError:
            refused += 1
            assert any(len(by_rank(piece, ranks)) == 2 for piece in known)
            continue
        scores |= {piece: -100.0 - number for number, piece in enumerate(known) if piece not in scores}
        for text in TEXTS:
            assert by_score(text, scores) == by_rank(text, ranks), (merges, text)
    assert 10 < refused < 70


def test_runs_of_one_score_are_made_from_left_to_right() -> None:
    """As Llama 2 has them of spaces."""
    scores = {"a" * length: -9.0 for length in range(1, 6)} | {"ab": 0.0, "b": -1.0, "bb": -20.0}
    ranks = {pair: rank for rank, pair in enumerate(merges_by_score(scores))}
    for text in TEXTS:
        assert by_rank(text, ranks) == by_score(text, scores), text


def test_other_pieces_of_one_score_are_refused() -> None:
    for same in (["ab", "ba"], ["aa", "aaaa"], ["bb", "bbb", "aa"]):
        with pytest.raises(TokenizerError, match="have the same score"):
            merges_by_score(dict.fromkeys(same, 0.0) | LETTERS | {"aaab": -1.0})
    with pytest.raises(TokenizerError, match="'aab' is a piece, but there is no merge of its parts"):
        scores_by_rank(["aa", "aab", "a", "b"], [("a", "a")])
