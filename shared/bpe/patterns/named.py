r"""The patterns that cut text into pieces, which no token ever crosses.

Sources of the named patterns, all read by the `regex` package in its default (V0) mode:

- `gpt2`: OpenAI's GPT-2 release, src/encoder.py; also what the `ByteLevel` pre-tokenizer of Hugging Face does.
- `cl100k`, `o200k`: tiktoken, tiktoken_ext/openai_public.py. In cl100k, tiktoken's `{1,3}+` and `\s++$` are written
  `{1,3}` and `\s++(?!\S)`: the same matches, and Oniguruma, which Hugging Face uses, reads them the same way too.
- `llama3`: tokenizer.json of Meta-Llama-3-8B.
- `qwen`: tokenizer.json of Qwen2 and Qwen3.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import regex

from shared.bpe.errors import TokenizerError
from shared.bpe.patterns.grammar import translate

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

# Other published spellings of a named pattern, with the same matches wherever they are read.
_SPELLINGS = {
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""": "gpt2",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""": "gpt2",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""": "gpt2",
}
# tiktoken's spelling, whose `{1,3}+` is a repeat of a repeat to Oniguruma: there it takes any number of numbers.
_TIKTOKEN_SPELLINGS = {
    (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
        r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ): "cl100k",
}

# Seconds of processor time for what is cut by a custom pattern: at all, for each text, and for each of its characters.
# Patterns that do not backtrack take a tenth of it at most.
_SECONDS = 1.0
_SECONDS_PER_TEXT = 50e-6
_SECONDS_PER_CHARACTER = 5e-6
# Matches between two looks at the clock, each of which costs as much as some matches.
_MATCHES_AT_ONCE = 1000


def resolve_pattern(pattern: str) -> str:
    """The regular expression meant by a name, by tiktoken's spelling of a named pattern, or by a regular expression.

    Raises:
        TokenizerError: If it looks like a name, but is none; else as in `read_expression`.
    """
    expression = PATTERNS.get(_TIKTOKEN_SPELLINGS.get(pattern, pattern), pattern)
    if expression.isalnum():
        raise TokenizerError(
            f"there is no pattern {pattern!r}; give one of {', '.join(PATTERNS)} or a regular expression"
        )
    return read_expression(expression)


def read_expression(expression: str) -> str:
    """A regular expression, as Hugging Face's tokenizers reads it: that of a named pattern if it has the same matches.

    Raises:
        TokenizerError: If the text is empty, not a valid regular expression, or one that may be read in several ways;
            names the construct.
    """
    if not expression:
        raise TokenizerError(f"the pattern is empty; give one of {', '.join(PATTERNS)} or a regular expression")
    expression = PATTERNS.get(_SPELLINGS.get(expression, ""), expression)
    _compile(expression)
    return expression


def check_tiktoken(expression: str) -> None:
    """Refuse an expression that tiktoken would not read as Hugging Face's tokenizers does.

    Raises:
        TokenizerError: Names what it would read otherwise.
    """
    construct = None if is_named(expression) else translate(expression).not_in_tiktoken
    if construct is not None:
        raise TokenizerError(f"the pattern {expression!r} has another meaning to tiktoken: {construct}")


def is_named(expression: str) -> bool:
    """Whether this is the expression of a named pattern, whose cuts are known to be local (see `chunks`)."""
    return expression in PATTERNS.values()


class TimeBudget:
    """Processor time that the texts of one call share for a custom pattern. Any number of threads may share one.

    Attributes:
        granted: Seconds for all texts so far.
        characters: Of all texts so far.
    """

    def __init__(self) -> None:
        self.granted = self._left = _SECONDS
        self.characters = 0
        self._lock = threading.Lock()

    def grant(self, text: str) -> float:
        """Add the time for one more text; returns the seconds that are left."""
        seconds = _SECONDS_PER_TEXT + _SECONDS_PER_CHARACTER * len(text)
        with self._lock:
            self.granted += seconds
            self._left += seconds
            self.characters += len(text)
            return self._left

    def spend(self, seconds: float) -> None:
        """Take what a text has used."""
        with self._lock:
            self._left -= seconds


def split(expression: str, text: str, budget: TimeBudget | None = None) -> list[str]:
    """Cut text into pieces; joined again they are the text. What a custom pattern leaves unmatched is a piece too.

    Args:
        expression: Of the pattern.
        text: The text.
        budget: What a custom pattern may take for this text and others together; None for this text alone.

    Raises:
        TokenizerError: If a custom pattern takes too much time or memory.
    """
    compiled = _compile(expression)
    if is_named(expression):
        # Every character is a letter, a number, white space or none of these, and each of them begins a match.
        return compiled.findall(text)
    pieces: list[str] = []
    end = 0
    for start, stop in _matches(compiled, text, budget or TimeBudget()):
        if start > end:
            pieces.append(text[end:start])
        if stop > start:
            pieces.append(text[start:stop])
        end = stop
    if end < len(text):
        pieces.append(text[end:])
    return pieces


def _matches(compiled: "regex.Pattern[str]", text: str, budget: TimeBudget) -> Iterator[tuple[int, int]]:
    """Where a custom pattern matches, as Oniguruma does: behind an empty match, one character is left out."""
    granted = budget.grant(text)
    started = time.thread_time()
    try:
        yield from _matches_until(compiled, text, started + granted, budget)
    finally:
        budget.spend(time.thread_time() - started)


def _matches_until(
    compiled: "regex.Pattern[str]", text: str, deadline: float, budget: TimeBudget
) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin <= len(text):
        left = deadline - time.thread_time()
        if left <= 0:
            raise _too_costly(f"{budget.granted:.1f} s of processor time", text, begin, budget.characters)
        try:
            for match in compiled.finditer(text, begin, timeout=max(0.01, left)):
                spans = match.spans(1)
                yield from spans
                start, begin = spans[-1]
                if start == begin:
                    begin += 1
                    break
            else:
                return
        except TimeoutError:
            # Its clock is that of all threads together, so it may ring too early: go on unless the time is up.
            continue
        except MemoryError:
            raise _too_costly("the memory there is", text, begin, len(text)) from None


def _too_costly(limit: str, text: str, place: int, characters: int) -> TokenizerError:
    """The error for text of so many characters, of which `text` is all or a part."""
    where = f"a text of {characters:,} characters, near character {place:,}"
    if characters > len(text):
        where = f"{characters:,} characters in all, near character {place:,} of a part of {len(text):,}"
    return TokenizerError(
        f"the tokenizer's pattern took more than {limit} for {where}: it tries too many ways to match such a text"
    )


@lru_cache(maxsize=64)
def _compile(expression: str) -> "regex.Pattern[str]":
    """The expression of a named pattern, or group 1 for each of several matches of a custom one in a row."""
    if is_named(expression):
        return regex.compile(expression)
    translation = translate(expression)
    times = 1 if translation.is_nullable else _MATCHES_AT_ONCE
    return regex.compile(f"(?>({translation.expression})){{1,{times}}}", regex.VERSION1)
