"""What may be asked of training: the size of the vocabulary, and the special tokens."""

from collections.abc import Iterable, Sequence

from shared.bpe.byte_alphabet import CHARACTER_TO_BYTE, from_printable
from shared.bpe.errors import TokenizerError
from shared.bpe.vocabulary import encode_utf8


def merges_wanted(vocab_size: int, special_tokens: Sequence[str]) -> int:
    """The tokens that are left to learn beside the bytes and the special tokens.

    Raises:
        TokenizerError: If there is no such vocabulary.
    """
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool):
        raise TokenizerError(f"the vocabulary size must be a whole number, not {vocab_size!r}")
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special_tokens must be a list of strings, not the one string {special_tokens!r}")
    for index, content in enumerate(special_tokens):
        if not content:
            raise TokenizerError(f"special token {index} is empty")
        if content in special_tokens[:index]:
            raise TokenizerError(f"the special token {content!r} is given twice")
    for spelling in reserved_spellings(special_tokens):
        if len(spelling) == 1:
            raise TokenizerError(
                f"the special token {spelling.decode('latin-1')!r} is spelt like the token of a byte; take a longer one"
            )
    minimum = 256 + len(special_tokens)
    if vocab_size < minimum:
        raise TokenizerError(
            f"the vocabulary size {vocab_size} is below {minimum}: 256 bytes and {len(special_tokens)} special tokens"
        )
    return vocab_size - minimum


def reserved_spellings(special_tokens: Iterable[str]) -> frozenset[bytes]:
    """The byte strings of ordinary tokens that would be spelt like a special token, here or in tokenizer.json."""
    printable = [from_printable(content) for content in special_tokens if CHARACTER_TO_BYTE.keys() >= set(content)]
    return frozenset([*map(encode_utf8, special_tokens), *printable])
