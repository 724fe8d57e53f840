"""Special tokens that are added to a tokenizer."""

from collections.abc import Sequence
from pathlib import Path

from shared.bpe import Tokenizer, TokenizerError
from trainer.errors import UsageError


def extend_tokenizer(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer with more special tokens, whose ids follow its last; itself where there are none.

    Raises:
        UsageError: a token is there already, or cannot be one.
    """
    if not tokens:
        return tokenizer
    try:
        return Tokenizer(tokenizer.vocabulary.with_special_tokens(tokens))
    except TokenizerError as error:
        raise UsageError(f"--extend-tokens: {error}") from error


def open_tokenizer(path: Path, extend_tokens: Sequence[str]) -> Tokenizer:
    """Open a tokenizer, as `Tokenizer.from_files` does, and add special tokens to it."""
    return extend_tokenizer(Tokenizer.from_files(path), extend_tokens)


def added_contents(before: Tokenizer, after: Tokenizer) -> list[str]:
    """The added tokens that only the second tokenizer has."""
    old = {token.content for token in before.vocabulary.added}
    return [token.content for token in after.vocabulary.added if token.content not in old]
