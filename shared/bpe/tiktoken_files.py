"""tiktoken's rank files: a line for each token, its bytes in base64 and its rank, which is also its id."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

from shared.bpe.errors import TokenizerError
from shared.bpe.files import read_text, to_json, write_text
from shared.bpe.merging import MergeTable, merge_piece
from shared.bpe.patterns import check_tiktoken, resolve_pattern
from shared.bpe.vocabulary import AddedToken, Vocabulary


def read(path: Path, *, pattern: str, special_tokens: Mapping[str, int]) -> Vocabulary:
    """Read a rank file.

    tiktoken joins neighbours whose bytes together are a token, lowest rank first. Since no token ever crosses the edges
    of another that is still to come, the parts of a token are always the same two, and they become its merge. A token
    without such parts is reached only as a whole piece.

    Raises:
        TokenizerError: If a line is damaged, which is named, or tiktoken reads the pattern in its own way.
    """
    ids = _read_ranks(path)
    try:
        expression = resolve_pattern(pattern)
        check_tiktoken(expression)
        added = tuple(
            AddedToken(token_id, text) for text, token_id in sorted(special_tokens.items(), key=lambda t: t[1])
        )
        return Vocabulary(
            tokens={token_id: token for token, token_id in ids.items()},
            merges=tuple(_merges(ids)),
            added=added,
            pattern=expression,
            ignore_merges=True,
        )
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


def write(path: Path, vocabulary: Vocabulary) -> None:
    """Write a rank file, and PATH.json with what it cannot hold: the pattern and the special tokens.

    Raises:
        TokenizerError: If the vocabulary has no such form.
    """
    _check_exportable(vocabulary)
    ranks = sorted(vocabulary.tokens.items())
    lines = [f"{base64.b64encode(token).decode('ascii')} {token_id}\n" for token_id, token in ranks]
    write_text(path, "".join(lines))
    special = {token.content: token.id for token in vocabulary.added}
    write_text(path.with_name(f"{path.name}.json"), to_json({"pattern": vocabulary.pattern, "special_tokens": special}))


def _read_ranks(path: Path) -> dict[bytes, int]:
    ids: dict[bytes, int] = {}
    lines: dict[int, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        where = f"{path}, line {number}"
        if len(fields) != 2 or not (fields[1].isascii() and fields[1].isdigit()):
            raise TokenizerError(f"{where}: expected a token in base64 and its rank, got {line[:80]!r}")
        try:
            token = base64.b64decode(fields[0], validate=True)
        except binascii.Error as error:
            raise TokenizerError(f"{where}: {fields[0][:80]!r} is not base64: {error}") from None
        rank = int(fields[1])
        if rank in lines:
            raise TokenizerError(f"{where}: the rank {rank} was already given in line {lines[rank]}")
        if token in ids:
            raise TokenizerError(f"{where}: the token {token!r} was already given in line {lines[ids[token]]}")
        ids[token], lines[rank] = rank, number
    return ids


def _merges(ids: Mapping[bytes, int]) -> list[tuple[int, int]]:
    merges: list[tuple[int, int]] = []
    table: dict[tuple[int, int], tuple[int, int]] = {}
    for token, token_id in sorted(ids.items(), key=lambda entry: entry[1]):
        if len(token) > 1 and (pair := _parts(token, ids, table)) is not None:
            merges.append(pair)
            table[pair] = (token_id, token_id)
    return merges


def _parts(token: bytes, ids: Mapping[bytes, int], merges: MergeTable) -> tuple[int, int] | None:
    """The two tokens that all earlier merges leave of a token's bytes."""
    singles = [ids.get(token[place : place + 1], -1) for place in range(len(token))]
    parts = merge_piece(singles, merges)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _check_exportable(vocabulary: Vocabulary) -> None:
    tokens, ids = vocabulary.tokens, vocabulary.ids
    unsupported = [t for t in vocabulary.added if not t.special or t.lstrip or t.rstrip]
    if unsupported or vocabulary.nfc:
        what = f"the added token {unsupported[0].content!r} with its flags" if unsupported else "the NFC normalizer"
        raise TokenizerError(f"a tiktoken file cannot hold {what}; save tokenizer.json instead")
    check_tiktoken(vocabulary.pattern)
    if vocabulary.pattern.isalnum():
        raise TokenizerError(
            f"a tiktoken file cannot hold the pattern {vocabulary.pattern!r}, which would be read as a name; save "
            "tokenizer.json instead"
        )
    if _merges(ids) != [*vocabulary.merges] or any(
        ids[tokens[a] + tokens[b]] <= max(a, b) for a, b in vocabulary.merges
    ):
        raise TokenizerError(
            "a tiktoken file takes ids for ranks, but these ids do not follow the order of the merges; "
            "save tokenizer.json instead"
        )
