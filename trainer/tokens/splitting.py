"""Which documents are for validation, and where a text with too few documents is cut instead."""

import hashlib
from typing import NamedTuple, Protocol

import numpy as np

from shared.bpe import Tokenizer
from trainer.tokens.token_file import Ids

# Ids around the wanted place in which a better one is looked for: half of the fraction, but no fewer and no more.
_LEAST, _MOST = 1 << 8, 1 << 20


class IdSequence(Protocol):
    """Ids that are read a part at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Ids: ...


class Split(NamedTuple):
    """Which documents are for which split.

    Attributes:
        names: One name; or that of training and that of validation.
        fraction: Of the documents, for validation.
        seed: Decides which.
    """

    names: tuple[str, ...]
    fraction: float = 0.0
    seed: int = 0

    def of(self, document: int) -> str:
        """The split of a document, by its number."""
        return self.names[is_validation(document, self.fraction, self.seed)]


def is_validation(document: int, fraction: float, seed: int) -> bool:
    """Whether a document is for validation: a function of its number and the seed alone.

    The first one never is, so that there is always something to train on.
    """
    digest = hashlib.blake2b(f"{seed}:{document}".encode(), digest_size=8).digest()
    return document > 0 and int.from_bytes(digest, "little") < fraction * 2**64


def place_to_cut(ids: IdSequence, fraction: float, tokenizer: Tokenizer, end_of_text_id: int) -> int | None:
    """Where the last fraction of a text begins: near there, at the end of a document, else of a line, else of a word.

    Args:
        ids: The whole text.
        fraction: Between 0 and 1, of the ids.
        tokenizer: The ids' tokenizer.
        end_of_text_id: The id after each document.

    Returns:
        The number of ids before it; None if there is no place with text on both sides. Both parts are valid UTF-8.
    """
    # What follows the last document's end is not a document.
    last = _last(ids, end_of_text_id) - 1
    if last < 1:
        return None
    wanted = min(last, round(len(ids) * (1 - fraction)))
    reach = min(max((len(ids) - wanted) // 2, _LEAST), _MOST)
    first, last = max(1, wanted - reach), min(last, wanted + reach)
    before, after = ids[first - 1 : last], ids[first : last + 1]
    ends_line, begins_word, begins_character = (np.zeros(tokenizer.vocab_size, dtype=np.bool_) for _ in range(3))
    for token_id, token in tokenizer.tokens.items():
        ends_line[token_id] = token.endswith(b"\n")
        begins_word[token_id] = token.startswith(b" ")
        begins_character[token_id] = not 0x80 <= token[0] < 0xC0
    for is_good in (before == end_of_text_id, ends_line[before], begins_word[after], begins_character[after]):
        places = first + np.flatnonzero(is_good & (after != end_of_text_id))
        if len(places):
            return int(places[np.abs(places - wanted).argmin()])
    return None


def _last(ids: IdSequence, wanted: int) -> int:
    """The index of the last occurrence of an id; -1 if there is none."""
    for end in range(len(ids), 0, -_MOST):
        begin = max(0, end - _MOST)
        found = np.flatnonzero(ids[begin:end] == wanted)
        if len(found):
            return begin + int(found[-1])
    return -1
