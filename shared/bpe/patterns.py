r"""The patterns that cut text into pieces, which no token ever crosses.

Sources of the named patterns, all read by the `regex` package in its default (V0) mode:

- `gpt2`: OpenAI's GPT-2 release, src/encoder.py; also what the `ByteLevel` pre-tokenizer of Hugging Face does.
- `cl100k`, `o200k`: tiktoken, tiktoken_ext/openai_public.py. In cl100k, tiktoken's `{1,3}+` and `\s++$` are written
  `{1,3}` and `\s++(?!\S)`: the same matches, and Oniguruma, which Hugging Face uses, reads them the same way too.
- `llama3`: tokenizer.json of Meta-Llama-3-8B.
- `qwen`: tokenizer.json of Qwen2 and Qwen3.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import regex

from shared.bpe.errors import TokenizerError

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "gpt2": r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
        "cl100k": (
            r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
            r"""|\s++(?!\S)|\s*[\r\n]|\s+(?!\S)|\s"""
        ),
        "o200k": (
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
            r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
            r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
        ),
        "llama3": (
            r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
            r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
        ),
        "qwen": (
            r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"""
            r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
        ),
    }
)

# Other published spellings of a named pattern, with the same matches.
_SPELLINGS = {
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""": "gpt2",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""": "gpt2",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""": "gpt2",
    (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
        r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ): "cl100k",
}


def resolve_pattern(pattern: str) -> str:
    """The regular expression meant by a name, by another spelling of a named pattern, or by a regular expression.

    Raises:
        TokenizerError: If the text is empty or not a valid regular expression.
    """
    expression = PATTERNS.get(_SPELLINGS.get(pattern, pattern), pattern)
    _compile(expression)
    return expression


def is_named(expression: str) -> bool:
    """Whether this is the expression of a named pattern, whose cuts are known to be local (see `chunks`)."""
    return expression in PATTERNS.values()


def split(expression: str, text: str) -> list[str]:
    """Cut text into pieces; joined again they are the text. What a custom pattern leaves unmatched is a piece too."""
    compiled = _compile(expression)
    if is_named(expression):
        # Every character is a letter, a number, white space or none of these, and each of them begins a match.
        return compiled.findall(text)
    pieces: list[str] = []
    end = 0
    for match in compiled.finditer(text):
        if match.start() > end:
            pieces.append(text[end : match.start()])
        if match.end() > match.start():
            pieces.append(match.group())
        end = match.end()
    if end < len(text):
        pieces.append(text[end:])
    return pieces


@lru_cache(maxsize=64)
def _compile(expression: str) -> "regex.Pattern[str]":
    if not expression:
        raise TokenizerError(f"the pattern is empty; give one of {', '.join(PATTERNS)} or a regular expression")
    try:
        return regex.compile(expression)
    except regex.error as error:
        raise TokenizerError(
            f"the pattern {expression!r} is not one of {', '.join(PATTERNS)}, nor a valid regular expression: {error}"
        ) from None
