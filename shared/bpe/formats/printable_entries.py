"""Vocabulary entries and merges in their printable form, as vocab.json and tokenizer.json hold them."""

import re
from collections.abc import Container, Iterable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from shared.bpe.byte_alphabet import CHARACTER_TO_BYTE, from_printable, to_printable
from shared.bpe.errors import TokenizerError
from shared.bpe.vocabulary import INVALID_UTF8_BYTES
from shared.system.errors import short_repr

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_BYTES_OF_TEXT = frozenset(character for character, byte in CHARACTER_TO_BYTE.items() if byte not in INVALID_UTF8_BYTES)


def parse_vocab(path: Path | str, vocab: Any) -> dict[str, int]:
    """Ids by printable form, from a mapping in either direction.

    Raises:
        TokenizerError: An id is not a whole number from 0 on, or is given twice.
    """
    if not isinstance(vocab, Mapping):
        raise TokenizerError(f"{path}: the vocabulary must be a JSON object of tokens and ids")
    if vocab and all(isinstance(text, str) for text in vocab.values()):
        vocab = _invert(path, vocab)
    seen: dict[int, str] = {}
    for text, token_id in vocab.items():
        if type(token_id) is not int or token_id < 0:
            found = short_repr(token_id)
            raise TokenizerError(f"{path}: the id of {short_repr(text)} is {found}, not a whole number >= 0")
        if token_id in seen:
            both = f"{short_repr(seen[token_id])} and {short_repr(text)}"
            raise TokenizerError(f"{path}: the id {short_repr(token_id)} is given to both {both}")
        seen[token_id] = text
    return dict(vocab)


def parse_tokens(path: Path | str, vocab: Mapping[str, int]) -> dict[int, bytes]:
    """Ordinary tokens by id, from their printable forms.

    Raises:
        TokenizerError: An entry is not in the byte-level alphabet.
    """
    try:
        return {token_id: from_printable(text) for text, token_id in vocab.items()}
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}; only byte-level BPE is supported") from None


def parse_merges(
    path: Path | str, merges: Iterable[Any], vocab: Mapping[str, int], first: int = 0
) -> list[tuple[str, str]]:
    """Pairs of printable forms from merges written `"a b"` or `["a", "b"]`.

    Args:
        path: The file in error messages.
        merges: The merges in order.
        vocab: Ids by printable form.
        first: The number of the first merge in error messages.

    Raises:
        TokenizerError: A merge is not a pair of tokens; names its number.
    """
    pairs = []
    for number, merge in enumerate(merges, start=first):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        left, right = parts if isinstance(parts, list) and len(parts) == 2 else ("", "")
        if not (isinstance(left, str) and isinstance(right, str) and left and right):
            raise TokenizerError(f"{path}: merge {number} must be two tokens, not {short_repr(merge)}")
        if not (left in vocab and right in vocab and left + right in vocab):
            missing = next(token for token in (left, right, left + right) if token not in vocab)
            raise TokenizerError(
                f"{path}: merge {number}, {short_repr(merge)}, needs the token {short_repr(missing)}, which is missing "
                "in the vocabulary"
            )
        pairs.append((left, right))
    return pairs


def ordinary_entries(
    vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], added: Container[str]
) -> dict[str, int]:
    """The entries that merging may produce: all but added tokens, unless these are in merges or are single bytes."""
    merged = {text for left, right in merges for text in (left, right, left + right)}
    return {
        text: token_id
        for text, token_id in vocab.items()
        if text not in added or text in merged or text in _BYTES_OF_TEXT
    }


def _invert(path: Path | str, vocab: Mapping[str, str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for number, text in vocab.items():
        if not _NUMBER.fullmatch(number):
            found = short_repr(number)
            raise TokenizerError(f"{path}: the id of {short_repr(text)} is {found}, not a whole number >= 0")
        if text in ids:
            raise TokenizerError(f"{path}: the ids {ids[text]} and {number} are both given to {short_repr(text)}")
        ids[text] = int(number)
    return ids


def printable_tokens(tokens: Mapping[int, bytes]) -> dict[int, str]:
    """The printable forms of tokens, in the order of their ids."""
    # Without loops in Python, since every `encode` writes the tokenizer's file.
    ordered = sorted(tokens)
    spellings = [*map(tokens.__getitem__, ordered)]
    ends = [*accumulate(map(len, spellings), initial=0)]
    together = to_printable(b"".join(spellings))
    return {token_id: together[start:end] for token_id, (start, end) in zip(ordered, pairwise(ends), strict=True)}
