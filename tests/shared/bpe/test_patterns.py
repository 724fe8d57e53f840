import pytest
import tiktoken
from tokenizers import Regex, pre_tokenizers

from shared.bpe import PATTERNS, TokenizerError
from shared.bpe.patterns import resolve_pattern, split

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


def test_custom_pattern_keeps_what_it_does_not_match() -> None:
    assert split(r"(b)+|\b", "abbcb!") == ["a", "bb", "c", "b", "!"]


@pytest.mark.parametrize("pattern", ["", "(", "gpt3("])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerError, match="pattern"):
        resolve_pattern(pattern)
