"""Time grows with the length of a text, whatever is in it: CPU time at 64 kB against that at 1 or 8 MB."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from shared.bpe import StreamDecoder, Tokenizer

pytestmark = pytest.mark.extended

SMALL, LARGE, LARGEST = 1 << 16, 1 << 20, 8 << 20
# What a byte of the larger text may take of one of the smaller: caches of the processor and trees cost a factor. Where
# the time grows with the square, it is 16 from 64 kB to 1 MB, and 128 to 8 MB.
FACTOR = 6
# CPU time below which a measurement says nothing.
SECONDS = 0.002

# Repeated to the length: what patterns, normalization and added tokens look ahead or back for.
REPEATED = {
    "one letter": "a",
    "capitals": "A",
    "capital and small": "aA",
    "blanks": " ",
    "newlines": "\n",
    "blank newline": " \n",
    "digits": "7",
    "apostrophes": "'",
    "contractions": "'s",
    "punctuation": "!",
    "slash newline": "/\n",
    "beginning of an added token": "<|im",
    "added tokens": "<|endoftext|>",
    "added tokens and blanks": "<|endoftext|> ",
    "far apart": " " * 100 + "<|endoftext|>",
    "Han": "\u8a18",
    "emoji": "\U0001f468\u200d\U0001f469",
    "a mark": "\u0301",
    "marks out of order": "\u0301\u0316",
    "a pair of marks": "\u0f73",
    "jamo": "\u1100\u1161\u11a8",
    "vowel signs": "\u09c7\u09be",
    "letters with marks": "a\u0301\u0316",
}
BUILT: dict[str, Callable[[int], str]] = {
    "D29": lambda size: "a" + "\u0301" * (size // 4) + "\u0316" * (size // 4),
    "marks of five classes": lambda size: (
        "a" + "".join(mark * (size // 10) for mark in "\u0301\u0323\u0316\u0327\u0338")
    ),
    "blanks and a letter": lambda size: " " * (size - 1) + "a",
    "newline, blanks and a letter": lambda size: "\n" + " " * (size - 2) + "a",
}


def repeat(unit: str, size: int) -> str:
    return unit * (size // len(unit.encode()))


TEXTS = BUILT | {name: partial(repeat, unit) for name, unit in REPEATED.items()}


def encode_stream(tokenizer: Tokenizer, text: str) -> None:
    chunks = (text[start : start + 1000] for start in range(0, len(text), 1000))
    for _ in tokenizer.encode_iterable(chunks, allowed_special="all"):
        pass


def decode_stream(tokenizer: Tokenizer, text: str) -> None:
    decoder = StreamDecoder(tokenizer)
    for token in tokenizer.encode(text):
        decoder.feed(token)
    decoder.finish()


WORK: dict[str, Callable[[Tokenizer, str], object]] = {
    "encode": lambda tokenizer, text: tokenizer.encode_to_numpy(text),
    "with added tokens": lambda tokenizer, text: tokenizer.encode_to_numpy(text, allowed_special="all"),
    "pieces": lambda tokenizer, text: tokenizer.encode_with_offsets(text, allowed_special="all"),
    "stream": encode_stream,
    "decode": lambda tokenizer, text: tokenizer.decode(tokenizer.encode(text)),
    "decode one by one": decode_stream,
}


@pytest.fixture(scope="module", params=["gpt2", "cl100k", "o200k", "qwen", "stripping qwen"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    *stripping, name = request.param.split()
    given: Tokenizer = request.getfixturevalue(name)
    if stripping:
        added = tuple(replace(token, lstrip=True, rstrip=True) for token in given.vocabulary.added)
        return Tokenizer(replace(given.vocabulary, added=added))
    return given


@pytest.fixture(autouse=True)
def only_new_objects() -> Iterator[None]:
    """A full garbage collection in the longer text would go through all that other tests of this process left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def seconds(work: Callable[[], object], times: int = 1) -> float:
    def once() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return min(once() for _ in range(times))


def check(name: str, tokenizer: Tokenizer, text: str, *, small: int, large: int) -> None:
    texts = [TEXTS[text](size) for size in (small, large)]
    least = seconds(partial(WORK[name], tokenizer, texts[0]), 2)
    growth = len(texts[1].encode()) / len(texts[0].encode())
    limit = FACTOR * growth * max(SECONDS, least)
    # Once more where it took long: CPU time counts what other threads of a test run leave behind as well.
    work = partial(WORK[name], tokenizer, texts[1])
    assert seconds(work) < limit or seconds(work, 2) < limit, text


@pytest.mark.case("D29")
@pytest.mark.parametrize("text", ["D29", "marks out of order", "a pair of marks", "added tokens and blanks"])
def test_time_grows_with_the_length(qwen: Tokenizer, text: str) -> None:
    check("pieces", qwen, text, small=SMALL // 8, large=SMALL)
    check("encode", qwen, text, small=SMALL, large=LARGE)


@pytest.mark.slow
@pytest.mark.case("D29")
@pytest.mark.parametrize(
    ("work", "small", "large"),
    [
        *((work, SMALL, size) for work in ("encode", "with added tokens", "decode") for size in (LARGE, LARGEST)),
        ("stream", SMALL, LARGE),
        # Python's work for each token: the same growth from a quarter of the length, in a quarter of the time.
        *((work, SMALL // 4, LARGE // 4) for work in ("pieces", "decode one by one")),
    ],
)
def test_time_grows_with_the_length_of_every_text(tokenizer: Tokenizer, work: str, small: int, large: int) -> None:
    tokenizer.warm_up()
    for text in TEXTS:
        check(work, tokenizer, text, small=small, large=large)
