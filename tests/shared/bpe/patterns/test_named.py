import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tiktoken
from tokenizers import Regex, pre_tokenizers

from shared.bpe import PATTERNS, Tokenizer, TokenizerError, train_bpe
from shared.bpe.patterns import named as patterns_module
from shared.bpe.patterns.named import read_expression, resolve_pattern, split
from shared.bpe.training.pretokenizers import count_pretokens

# As published: tiktoken 0.9+ (tiktoken_ext/openai_public.py).
CL100K_PUBLISHED = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)

# B26, with more white space at the end than anywhere.
PROBES = [
    "I'M THEY'RE", "it'\u017f", "12345", " 12345", "a\r\n\r\nb", "x\n\n\n\ny", "(abc", "\u00bd\u0661\u0662",
    "a  \n  ", "\t\ta", "'s'S'll'LL",
    "x \n \n", "HTTPServer's été", "a/\n/b", "12 345 678 9012", "\u3000\u3000字 字", "\r\r\n", "a\u0301\u0302b'T",
]  # fmt: skip


def pieces_of_tiktoken(pattern: str, text: str) -> list[str]:
    """tiktoken's own cuts: it takes a piece that is a token as a whole, so let every part of the text be a token."""
    ranks = {bytes([b]): b for b in range(256)}
    for piece in {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}:
        ranks.setdefault(piece.encode(), len(ranks))
    engine = tiktoken.Encoding("pieces", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [engine.decode_bytes([token]).decode() for token in engine.encode_ordinary(text)]


@pytest.mark.parametrize("text", PROBES)
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_B26_cuts_equal_hugging_face(name: str, text: str) -> None:
    splitter = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    assert split(PATTERNS[name], text) == [piece for piece, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", PROBES)
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_B26_cuts_equal_tiktoken(name: str, text: str) -> None:
    published = CL100K_PUBLISHED if name == "cl100k" else PATTERNS[name]
    assert split(PATTERNS[name], text) == pieces_of_tiktoken(published, text)


def test_B26_the_examples_of_the_case() -> None:
    assert split(PATTERNS["cl100k"], "12345") == ["123", "45"]
    assert split(PATTERNS["gpt2"], " 12345") == [" 12345"]
    assert split(PATTERNS["gpt2"], "I'S") == ["I", "'", "S"]
    assert split(PATTERNS["cl100k"], "it'\u017f") == ["it", "'\u017f"]


def test_published_spellings_mean_the_named_pattern() -> None:
    assert resolve_pattern(CL100K_PUBLISHED) == resolve_pattern("cl100k") == PATTERNS["cl100k"]


@pytest.mark.case("D28")
@pytest.mark.parametrize("text", [*sorted(PATTERNS), CL100K_PUBLISHED])
def test_an_expression_is_never_a_name_nor_what_tiktoken_means_by_it(text: str) -> None:
    assert read_expression(text) == text
    splitter = pre_tokenizers.Split(Regex(text), "isolated")
    probe = "ab gpt2 12345 cl100k o200k llama3 qwen"
    assert split(text, probe) == [piece for piece, _ in splitter.pre_tokenize_str(probe)]


@pytest.mark.case("D28")
def test_a_name_that_is_none_is_refused_rather_than_taken_for_an_expression() -> None:
    with pytest.raises(TokenizerError, match="unknown pattern 'gtp2'; give one of gpt2, cl100k"):
        resolve_pattern("gtp2")


def test_custom_pattern_keeps_what_it_does_not_match() -> None:
    assert split(r"(b)+|\b", "abbcb!") == ["a", "bb", "c", "b", "!"]


@pytest.mark.parametrize("pattern", ["", "(", "gpt3("])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerError, match="pattern"):
        resolve_pattern(pattern)


# Published with the case: it tries two ways for every letter.
CATASTROPHIC = r"(?:a|a)+(?:\w|\w)*b|\s+|[\s\S]"
TOO_LONG = r"the tokenizer's pattern took more than 0\.3 s of CPU time for (a text of 70|72) characters"


@pytest.fixture(scope="module")
def catastrophic() -> Tokenizer:
    return train_bpe(["ab ab ba"], 258, special_tokens=["<|e|>"], pattern=CATASTROPHIC).tokenizer


@pytest.mark.case("D19")
@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer, text: tokenizer.encode(text),
        lambda tokenizer, text: tokenizer.encode_batch(["ab", text]),
        lambda tokenizer, text: tokenizer.encode(f"{text}<|e|>", allowed_special="all"),
        lambda tokenizer, text: tokenizer.encode_with_offsets(text),
        lambda tokenizer, text: tokenizer.encode_documents(text.encode(), "<|e|>"),
        lambda tokenizer, text: list(tokenizer.encode_iterable([text[:9], text[9:]])),
        lambda tokenizer, text: train_bpe([text], 300, pattern=tokenizer.pattern),
    ],
)
def test_a_pattern_that_backtracks_without_end_is_ended_while_other_threads_run(
    catastrophic: Tokenizer, encode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns_module, "_SECONDS", 0.3)
    assert not catastrophic.is_linear
    assert catastrophic.encode("ab ab") == catastrophic.encode("ab ab ")[:-1]
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    begin = time.process_time()
    with pytest.raises(TokenizerError, match=TOO_LONG):
        encode(catastrophic, "a" * 70)
    assert time.process_time() - begin < 2
    done.set()
    thread.join()
    # Without the interpreter lock there would be none between the first moments and the end.
    assert len(beats) > 3


@pytest.mark.case("D19")
def test_the_limit_grows_with_the_text_and_stops_what_grows_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns_module, "_SECONDS", 0.01)
    text = "word " * 20_000
    assert split(r"\w+|\W", text) == re.findall(r"\w+|\W", text)
    with pytest.raises(TokenizerError, match=r"more than 0\.5 s of CPU time for a text of 100,000 characters"):
        split("a*b|.", "a" * 100_000)


@pytest.mark.case("D19")
@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer, text: tokenizer.encode(text * 60, allowed_special="all"),
        lambda tokenizer, text: tokenizer.encode_with_offsets(text * 60, allowed_special="all"),
        lambda tokenizer, text: tokenizer.encode_batch([text] * 60, allowed_special="all"),
        lambda tokenizer, text: count_pretokens([text] * 60, special_tokens=["<|e|>"], pattern=tokenizer.pattern),
    ],
)
def test_all_texts_of_a_call_share_the_limit(encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_vocab({i: bytes([i]) for i in range(256)}, [], ["<|e|>"], pattern=r"(?:a|a)+b|[\s\S]")
    monkeypatch.setattr(patterns_module, "_SECONDS", 0.1)
    text = "a" * 14 + "<|e|>"  # some milliseconds: less than the shortest alarm
    assert len(tokenizer.encode(text, allowed_special="all")) == 15
    with pytest.raises(TokenizerError, match=r"more than 0\.1 s of CPU time") as refused:
        encode(tokenizer, text)
    # Not that one of these texts alone took so long.
    found = re.search(r"for (\d+) characters in all, near character (\d+) of a part of 14: ", str(refused.value))
    assert found is not None
    characters, place = map(int, found.groups())
    assert place < 14 < characters <= 14 * 60
    assert characters % 14 == 0


@pytest.mark.case("D19")
@pytest.mark.parametrize("pattern", [r"\w+|\b|\W{2}", r"\w+|\W{2}"])
def test_an_alarm_that_other_threads_set_off_ends_nothing(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the day,  of\n\nthe  dog. " * 9
    expected = split(pattern, text)
    monkeypatch.setattr(patterns_module, "_MATCHES_AT_ONCE", 2)
    compiled = patterns_module._compile.__wrapped__(pattern)

    class Alarmed:
        """Rings at every third match, as `regex`'s clock may, which counts the time of all threads."""

        def finditer(self, text: str, begin: int, timeout: float) -> Iterator[Any]:
            assert timeout > 0
            for count, match in enumerate(compiled.finditer(text, begin)):
                if count == 3:
                    raise TimeoutError
                yield match

    monkeypatch.setattr(patterns_module, "_compile", lambda expression: Alarmed())
    assert split(pattern, text) == expected


@pytest.mark.slow
@pytest.mark.case("D19")
def test_a_pattern_that_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(TokenizerError, match="took more than the available memory for a text of 16,000,000 characters"):
        split("(?:ab?)++|b", "a" * 16_000_000)
