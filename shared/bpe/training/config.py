"""The settings of a training, checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from shared.bpe.byte_alphabet import CHARACTER_TO_BYTE, from_printable
from shared.bpe.errors import TokenizerError
from shared.bpe.patterns.named import PATTERNS, resolve_pattern
from shared.bpe.training.corpus import Errors
from shared.bpe.vocabulary import encode_utf8


@dataclass(frozen=True)
class TrainingConfig:
    """What determines the result of a training, besides the text; see `train_bpe_from_sources`.

    Raises:
        TokenizerError: No vocabulary can meet these settings.
    """

    vocab_size: int
    special_tokens: Sequence[str] = ()
    pattern: str = "gpt2"
    min_count: int = 1
    errors: Errors = "strict"

    def __post_init__(self) -> None:
        if not isinstance(self.vocab_size, int) or isinstance(self.vocab_size, bool):
            raise TokenizerError(f"the vocabulary size must be a whole number, not {self.vocab_size!r}")
        _check_special_tokens(self.special_tokens)
        if self.num_merges < 0:
            minimum = self.vocab_size - self.num_merges
            raise TokenizerError(
                f"the vocabulary size must be at least {minimum}, for 256 bytes and {len(self.special_tokens)} special "
                f"tokens; found {self.vocab_size}"
            )
        if self.min_count < 1:
            raise TokenizerError(f"the minimum count must be at least 1, found {self.min_count}")
        self.expression  # noqa: B018  # raises for a pattern that is not supported

    @property
    def num_merges(self) -> int:
        """Tokens to train besides the bytes and the special tokens."""
        return self.vocab_size - 256 - len(self.special_tokens)

    @cached_property
    def expression(self) -> str:
        """The regular expression of the pattern."""
        return resolve_pattern(self.pattern)

    @property
    def pattern_name(self) -> str | None:
        """The name of the pattern; None for a custom regular expression."""
        return next((name for name, expression in PATTERNS.items() if expression == self.expression), None)

    @property
    def reserved(self) -> frozenset[bytes]:
        """Byte strings that must not become ordinary tokens: here or in tokenizer.json, a special token spells them."""
        return _spellings(self.special_tokens)


def _check_special_tokens(special_tokens: Sequence[str]) -> None:
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special_tokens must be a list of strings, not the single string {special_tokens!r}")
    for index, content in enumerate(special_tokens):
        if not content:
            raise TokenizerError(f"special token {index} is empty")
        if content in special_tokens[:index]:
            raise TokenizerError(f"the special token {content!r} is given twice")
    for spelling in _spellings(special_tokens):
        if len(spelling) == 1:
            raise TokenizerError(
                f"the special token {spelling.decode('latin-1')!r} has the spelling of a single-byte token; choose a "
                "longer one"
            )


def _spellings(special_tokens: Iterable[str]) -> frozenset[bytes]:
    printable = [from_printable(content) for content in special_tokens if CHARACTER_TO_BYTE.keys() >= set(content)]
    return frozenset([*map(encode_utf8, special_tokens), *printable])
