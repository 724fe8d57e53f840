"""A vocabulary from plain Python data: tokens with their ids, merges in order, and special tokens."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from shared.bpe.byte_alphabet import to_printable
from shared.bpe.errors import TokenizerError
from shared.bpe.formats.printable_entries import ordinary_entries, parse_merges, parse_tokens, parse_vocab
from shared.bpe.patterns.named import resolve_pattern
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.errors import short_repr


def from_plain(
    vocab: Mapping[Any, Any], merges: Iterable[Any], special_tokens: Iterable[str], pattern: str
) -> Vocabulary:
    """See `Tokenizer.from_vocab`."""
    ids = parse_vocab("vocab", {_key(key): _printable(value) for key, value in vocab.items()})
    pairs = parse_merges("merges", map(_printable_pair, merges), ids)
    entries: dict[str, int] = {}
    added: list[AddedToken] = []
    following = max(ids.values(), default=-1) + 1
    for content in special_tokens:
        entry = next((text for text in (to_printable(content.encode()), content) if text in ids), None)
        if entry is None:
            added.append(AddedToken(following, content))
            following += 1
        else:
            added.append(AddedToken(ids[entry], content))
            entries[entry] = ids[entry]
    ordinary = ordinary_entries(ids, pairs, entries)
    return Vocabulary(
        tokens=parse_tokens("vocab", ordinary),
        merges=tuple((ids[left], ids[right]) for left, right in pairs),
        added=tuple(sorted(added, key=lambda token: token.id)),
        pattern=resolve_pattern(pattern),
    )


def _key(key: Any) -> Any:
    """A key in the form of JSON: tokens in their printable form, ids (also NumPy's) as digits."""
    if isinstance(key, str | bytes):
        return _printable(key)
    try:
        if not isinstance(key, bool):
            return str(operator.index(key))
    except TypeError:
        pass
    raise TokenizerError(f"vocab: {short_repr(key)} is neither a token nor an id")


def _printable(token: Any) -> Any:
    return to_printable(token) if isinstance(token, bytes) else token


def _printable_pair(merge: Any) -> Any:
    return [*map(_printable, merge)] if isinstance(merge, (tuple, list)) else merge
