"""The scanner against the `regex` package, which is the specification."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bpe.kernels.classes import character_classes
from shared.bpe.kernels.scanner import MIN_CUTS, PATTERN_IDS, Scanner, scan
from shared.bpe.patterns.named import PATTERNS, split

# Fragments whose neighborhoods decide: contractions in all spellings, every kind of white space and of letter, marks,
# numbers of each category, characters of one to four bytes.
FRAGMENTS = (
    *("'", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'Re", "'LL", "'ſ", "s", "e", "l", "v"),
    *(" ", "  ", "\t", "\n", "\r\n", "\n\n", "\v", "\x1c", "\x85", "\xa0", "\u2003", "\u2028", "\u3000"),
    *(
        "a",
        "Z",
        "ab",
        "Ab",
        "aB",
        "é",
        "ß",
        "ǅ",
        "ʰ",
        "ª",
        "中",
        "あ",
        "ع",
        "ก",
        "𝒜",
        "𐐨",
        "\u0301",
        "\u0903",
        "\U000e0100",
    ),
    *("1", "12", "345", "٣", "½", "Ⅷ", "𝟙"),
    *("!", "--", "/", "_", "—", "“", "€", "😀", "\0", "\ufffd", "\U0010ffff"),
)

named_patterns = pytest.mark.parametrize("name", PATTERN_IDS)


def cut(name: str, text: str, room: int = 1024) -> list[str]:
    """The pretokens by the scanner."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    scanner = Scanner(PATTERN_IDS[name], character_classes(), np.empty(0, np.uint8), np.empty(room, dtype=np.int64))
    pretokens = []
    position = 0
    while position < len(data):
        count = scan(scanner, data, position, len(data))
        for end in scanner.cuts[:count].tolist():
            pretokens.append(data[position:end].tobytes().decode())
            position = end
    return pretokens


def edge_points() -> str:
    """The code points where the class changes, and those around them."""
    classes = character_classes()
    changes = np.flatnonzero(np.diff(classes)) + 1
    points = np.unique(np.concatenate([changes + offset for offset in (-2, -1, 0, 1)] + [np.arange(0x250)]))
    return "".join(chr(point) for point in points.tolist() if not 0xD800 <= point < 0xE000)


@named_patterns
def test_code_points_in_every_context(name: str) -> None:
    for context in ("a{}b", " {}{} ", "1{}1", "!{}!", "\n{}\n", "'{}s", "A{}'s", "  {}", "{}\u3000{}", "{}B", "B{}"):
        text = "".join(context.replace("{}", point) for point in edge_points())
        assert cut(name, text) == split(PATTERNS[name], text)


@pytest.mark.extended
@named_patterns
def test_every_code_point(name: str) -> None:
    text = "".join(f"{chr(point)}b " for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    assert cut(name, text) == split(PATTERNS[name], text)


@named_patterns
def test_fragments_in_any_order(name: str) -> None:
    generator = random.Random(20261128)
    for _ in range(2_000):
        text = "".join(generator.choices(FRAGMENTS, k=generator.choice((2, 5, 20, 80))))
        assert cut(name, text, room=generator.choice((MIN_CUTS, 200))) == split(PATTERNS[name], text), repr(text)


@named_patterns
def test_ascii_of_many_blocks(name: str) -> None:
    generator = random.Random(20261129)
    fragments = [fragment for fragment in FRAGMENTS if fragment.isascii()]
    for _ in range(2_000):
        text = "".join(generator.choices(fragments, k=generator.choice((40, 100, 200))))
        assert cut(name, text, room=generator.choice((MIN_CUTS, 300))) == split(PATTERNS[name], text), repr(text)


@named_patterns
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS)).map("".join)))
def test_any_text(name: str, text: str) -> None:
    assert cut(name, text) == split(PATTERNS[name], text)


@named_patterns
@pytest.mark.parametrize("offset", range(61, 68))
def test_what_straddles_the_edge_of_a_block(name: str, offset: int) -> None:
    for fragment in FRAGMENTS:
        for padding in ("a", " ", "!", "\u3000"):
            text = padding * offset + fragment * 3 + "x"
            assert cut(name, text) == split(PATTERNS[name], text), repr(text)


@named_patterns
def test_real_text_in_many_languages(name: str, data_dir: Path) -> None:
    paths = [
        *sorted((data_dir / "lang").glob("*.txt")),
        data_dir / "tinyshakespeare.txt",
        data_dir / "owt/owt_sample.txt",
    ]
    for path in paths:
        text = path.read_text(encoding="utf-8")[:100_000]
        assert cut(name, text) == split(PATTERNS[name], text), path.name


@named_patterns
def test_bytes_that_are_not_utf8_are_cut_without_reading_beyond(name: str) -> None:
    generator = random.Random(7)
    for _ in range(2_000):
        size = generator.randrange(1, 200)
        data = np.frombuffer(
            bytes(generator.choices((0x20, 0x61, 0x80, 0xBF, 0xC3, 0xE3, 0xF0, 0xF8, 0xFF), k=size)), np.uint8
        )
        cuts = np.empty(512, dtype=np.int64)
        count = scan(Scanner(PATTERN_IDS[name], character_classes(), np.empty(0, np.uint8), cuts), data, 0, size)
        ends = cuts[:count].tolist()
        assert ends == sorted(set(ends))
        assert ends[-1] == size
