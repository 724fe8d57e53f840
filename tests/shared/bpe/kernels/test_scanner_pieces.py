"""Cuts between characters that no piece has side by side."""

import random

import numpy as np
import numpy.typing as npt

from shared.bpe.kernels.scanner import MIN_CUTS, PIECES, Scanner, scan
from shared.bpe.kernels.scanner_pieces import adjacency

PIECES_OF = [" a", "ab", " ab", "  ", "éa", "жи", "живо", "🦊!", "x"]
TEXT = " abéживо🦊!x中\n"


def cut(text: str, classes: npt.NDArray[np.uint8], joins: npt.NDArray[np.uint8], room: int) -> list[str]:
    """All pretokens of a text, by as many calls as there are."""
    data = np.frombuffer(text.encode(), np.uint8)
    scanner = Scanner(PIECES, classes, joins, np.empty(room, np.int64))
    position, found = 0, []
    while position < len(data):
        count = scan(scanner, data, position, len(data))
        for end in scanner.cuts[:count].tolist():
            found.append(data[position:end].tobytes().decode())
            position = end
    return found


def test_no_piece_spans_a_cut_and_all_others_are_cut() -> None:
    classes, joins = adjacency(PIECES_OF, space_begins=False)
    together = {piece[place : place + 2] for piece in PIECES_OF for place in range(len(piece) - 1)}
    draw = random.Random(5)
    for _ in range(300):
        text = "".join(draw.choices(TEXT, k=draw.randrange(1, 60)))
        found = cut(text, classes, joins, MIN_CUTS)
        assert "".join(found) == text
        ends = {len("".join(found[:number])) for number in range(len(found) + 1)}
        for place in range(1, len(text)):
            if text[place - 1 : place + 1] in together:
                assert place not in ends
            elif text[place - 1 : place + 1].isascii() or "中" in text[place - 1 : place + 1]:
                assert place in ends  # the classes of others are coarse


def test_the_room_for_cuts_does_not_matter() -> None:
    classes, joins = adjacency(PIECES_OF, space_begins=False)
    text = "".join(random.Random(6).choices(TEXT, k=3_000))
    assert cut(text, classes, joins, MIN_CUTS) == cut(text, classes, joins, 5_000)
    assert cut("x" * 1_000, classes, joins, MIN_CUTS) == ["x"] * 1_000


def test_every_space_may_begin_a_pretoken() -> None:
    assert cut("a  ab", *adjacency(PIECES_OF, space_begins=False), MIN_CUTS) == ["a", "  ab"]
    assert cut("a  ab", *adjacency(PIECES_OF, space_begins=True), MIN_CUTS) == ["a", " ", " ab"]
    assert cut("ab", *adjacency([], space_begins=False), MIN_CUTS) == ["a", "b"]
