"""Time that grows with the length of a text, not with its square, whatever strangers send."""

import time
from collections.abc import Callable

import pytest

from shared.bpe import PATTERNS, Tokenizer, train_bpe
from shared.bpe.encoding.added_tokens import AddedTokenMatcher
from shared.bpe.encoding.chunks import Chunker
from shared.bpe.patterns.named import split
from shared.bpe.vocabulary import AddedToken

pytestmark = [pytest.mark.extended, pytest.mark.case("D19")]

# Repeated, they make long pieces, failed attempts of alternatives, and places where nothing can be cut.
UNITS = ("a", "A", "Aa", " ", "\n", " \n", "\u0301", "'", "中")
SHORT = 1 << 16


def check_growth(work: Callable[[str], object], unit: str, long: int) -> None:
    """A byte of a long text takes at most a few times the CPU time that one of a short text takes.

    If time grew with the square, it were as many times as the long text is longer; it may be twice the root of that.
    """

    def seconds_per_byte(size: int, repeats: int) -> float:
        text = unit * (size // len(unit.encode()))
        begin = time.thread_time()
        for _ in range(repeats):
            work(text)
        return (time.thread_time() - begin) / (size * repeats)

    work(unit)
    short = seconds_per_byte(SHORT, 8)
    assert seconds_per_byte(long, 1) < 2 * (long / SHORT) ** 0.5 * max(short, 2e-9), unit


@pytest.fixture(scope="module", params=["gpt2", "cl100k", "o200k"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_bpe(["the cat and  the\n\n hat's 123 "] * 3, 300, pattern=request.param).tokenizer


@pytest.mark.parametrize("unit", UNITS)
def test_encoding_by_named_patterns(tokenizer: Tokenizer, unit: str) -> None:
    check_growth(lambda text: tokenizer.encode_batch_to_numpy([text], max_threads=1), unit, long=1 << 23)


@pytest.mark.parametrize("unit", UNITS)
def test_cutting_by_named_patterns(tokenizer: Tokenizer, unit: str) -> None:
    check_growth(lambda text: split(tokenizer.pattern, text), unit, long=1 << 21)


@pytest.mark.parametrize("unit", ["<m>", "<m> ", " <m>", "<", " ", "<m"])
def test_finding_added_tokens_that_strip_white_space(unit: str) -> None:
    matcher = AddedTokenMatcher([AddedToken(0, "<m>", lstrip=True, rstrip=True), AddedToken(1, "<m<m>x")])
    check_growth(lambda text: sum(1 for _ in matcher.split(text)), unit, long=1 << 20)


@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\W"])
@pytest.mark.parametrize("unit", ["a", "<"])
def test_cutting_a_stream_into_blocks(pattern: str, unit: str) -> None:
    chunker = Chunker(PATTERNS.get(pattern, pattern), AddedTokenMatcher([AddedToken(0, "<<a>>")]))
    check_growth(lambda text: list(chunker.chunks([text])), unit, long=1 << 20)
