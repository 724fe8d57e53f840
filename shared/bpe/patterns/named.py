r"""The patterns that split text into pretokens; no token ever spans two of them.

Sources of the named patterns, all read by the `regex` package in its default (V0) mode:

- `gpt2`: OpenAI's GPT-2 release, src/encoder.py; also what the `ByteLevel` pre-tokenizer of Hugging Face does.
- `cl100k`, `o200k`: tiktoken, tiktoken_ext/openai_public.py. In cl100k, tiktoken's `{1,3}+` and `\s++$` are written
  `{1,3}` and `\s++(?!\S)`: the same matches, and Oniguruma, which Hugging Face uses, reads them the same way too.
- `llama3`: tokenizer.json of Meta-Llama-3-8B.
- `qwen`: tokenizer.json of Qwen2 and Qwen3.
"""

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import regex

from shared.bpe.errors import TokenizerError
from shared.bpe.patterns.grammar import translate
from shared.system.thread_pool import new_lock

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

# The whole text is one pretoken; or each space begins one. SentencePiece vocabularies have these.
WHOLE = r"[\s\S]+"
BEFORE_SPACES = r" [^ ]*|[^ ]+"

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

# Seconds of CPU time that a custom pattern may take: in any case, for each text, and for each of its characters.
# Patterns that do not backtrack take a tenth of it at most.
_SECONDS = 1.0
_SECONDS_PER_TEXT = 50e-6
_SECONDS_PER_CHARACTER = 5e-6
# Matches between two readings of the clock, each of which costs as much as some matches.
_MATCHES_AT_ONCE = 1000


def resolve_pattern(pattern: str) -> str:
    """The regular expression for a name, for tiktoken's spelling of a named pattern, or for a regular expression.

    Raises:
        TokenizerError: It looks like a name, but there is no such pattern; else as in `read_expression`.

    >>> resolve_pattern("gpt3")
    Traceback (most recent call last):
    shared.bpe.errors.TokenizerError: unknown pattern 'gpt3'; give one of gpt2, cl100k, o200k, llama3, qwen or ...
    """
    expression = PATTERNS.get(_TIKTOKEN_SPELLINGS.get(pattern, pattern), pattern)
    if expression.isalnum():
        raise TokenizerError(f"unknown pattern {pattern!r}; give one of {', '.join(PATTERNS)} or a regular expression")
    return read_expression(expression)


def read_expression(expression: str) -> str:
    """A regular expression, as Hugging Face's tokenizers reads it: that of a named pattern if it has the same matches.

    Raises:
        TokenizerError: It is empty, not a valid regular expression, or ambiguous; names the construct.
    """
    if not expression:
        raise TokenizerError(f"the pattern is empty; give one of {', '.join(PATTERNS)} or a regular expression")
    expression = PATTERNS.get(_SPELLINGS.get(expression, ""), expression)
    _compile(expression)
    return expression


def check_tiktoken(expression: str) -> None:
    """Refuse an expression that means something else to tiktoken than to Hugging Face's tokenizers.

    Raises:
        TokenizerError: Names the construct.
    """
    construct = None if is_named(expression) else translate(expression).not_in_tiktoken
    if construct is not None:
        raise TokenizerError(f"the pattern {expression!r} means something else to tiktoken: {construct}")


def is_named(expression: str) -> bool:
    """Whether this is the expression of a named pattern, whose boundaries are known to be local (see `chunks`)."""
    return expression in PATTERNS.values()


class TimeBudget:
    """CPU time that the texts of one call share for a custom pattern. Any number of threads may share one.

    Attributes:
        granted: Seconds granted for all texts so far.
        characters: Characters of all texts so far.
    """

    def __init__(self) -> None:
        self.granted = self._left = _SECONDS
        self.characters = 0
        self._lock = new_lock()

    def grant(self, text: str) -> float:
        """Add the time for one more text; returns the seconds that are left."""
        seconds = _SECONDS_PER_TEXT + _SECONDS_PER_CHARACTER * len(text)
        with self._lock:
            self.granted += seconds
            self._left += seconds
            self.characters += len(text)
            return self._left

    def spend(self, seconds: float) -> None:
        """Subtract what a text has used."""
        with self._lock:
            self._left -= seconds


def split(expression: str, text: str, budget: TimeBudget | None = None) -> list[str]:
    """Split a text into pretokens, whose concatenation is the text; what a custom pattern does not match is one too.

    Args:
        expression: The regular expression of the pattern.
        text: The text.
        budget: CPU time of a custom pattern for this text and others together; None for this text alone.

    Raises:
        TokenizerError: A custom pattern takes too much time or memory.

    >>> split(PATTERNS["gpt2"], "It's 12 o'clock")
    ['It', "'s", ' 12', ' o', "'", 'clock']
    """
    compiled = _compile(expression)
    if is_named(expression):
        # Every character is a letter, a number, white space or none of these, and each of them begins a match.
        return compiled.findall(text)
    pretokens: list[str] = []
    end = 0
    for start, stop in _matches(compiled, text, budget or TimeBudget()):
        if start > end:
            pretokens.append(text[end:start])
        if stop > start:
            pretokens.append(text[start:stop])
        end = stop
    if end < len(text):
        pretokens.append(text[end:])
    return pretokens


def _matches(compiled: "regex.Pattern[str]", text: str, budget: TimeBudget) -> Iterator[tuple[int, int]]:
    """Where a custom pattern matches, as in Oniguruma: behind an empty match, one character is skipped."""
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
            raise _too_costly(f"{budget.granted:.1f} s of CPU time", text, begin, budget.characters)
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
            # regex counts the time of all threads, so it may end too early: continue unless the time is really up.
            continue
        except MemoryError:
            raise _too_costly("the available memory", text, begin, len(text)) from None


def _too_costly(limit: str, text: str, place: int, characters: int) -> TokenizerError:
    """The error for a text of this many characters, of which `text` is all or a part."""
    where = f"a text of {characters:,} characters, near character {place:,}"
    if characters > len(text):
        where = f"{characters:,} characters in all, near character {place:,} of a part of {len(text):,}"
    return TokenizerError(
        f"the tokenizer's pattern took more than {limit} for {where}: it backtracks too much on such a text"
    )


@lru_cache(maxsize=64)
def _compile(expression: str) -> "regex.Pattern[str]":
    """The expression of a named pattern, or group 1 for each of several matches of a custom one in a row."""
    if is_named(expression):
        return regex.compile(expression)
    translation = translate(expression)
    times = 1 if translation.is_nullable else _MATCHES_AT_ONCE
    return regex.compile(f"(?>({translation.expression})){{1,{times}}}", regex.VERSION1)
