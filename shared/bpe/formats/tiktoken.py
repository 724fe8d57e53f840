"""tiktoken's rank files: one line per token, with its bytes in base64 and its rank, which is also its id."""

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path

from shared.bpe.encoding.merging import merge_pretoken
from shared.bpe.errors import TokenizerError
from shared.bpe.formats.reading import read_text
from shared.bpe.patterns.named import check_tiktoken, resolve_pattern
from shared.bpe.vocabulary import AddedToken, Vocabulary
from shared.system.files import to_json, write_text

_RANK = re.compile("[0-9]{1,18}")


def read(path: Path, *, pattern: str, special_tokens: Mapping[str, int]) -> Vocabulary:
    """Read a rank file.

    A token that tiktoken's merging does not produce is found only as a whole pretoken.

    Raises:
        TokenizerError: A line is damaged (names it), a byte has no token, the parts do not fit together, or the pattern
            means something else to tiktoken.
    """
    ids = _read_ranks(path)
    _check_bytes(f"{path}:", ids)
    for text, token_id in special_tokens.items():
        if type(token_id) is not int or token_id < 0:
            raise TokenizerError(f"the special token {text!r} has the id {token_id!r}, not a whole number >= 0")
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
    """Write a rank file, and PATH.json with the pattern and the special tokens, which it cannot hold.

    Raises:
        TokenizerError: The vocabulary has no such form.
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
    text = read_text(path)
    if text.lstrip().startswith("{"):
        raise TokenizerError(f"{path} is JSON, not a rank file; open it with Tokenizer.from_files")
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        where = f"{path}, line {number}"
        if len(fields) != 2 or not _RANK.fullmatch(fields[1]):
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


def _check_bytes(what: str, ids: Mapping[bytes, int]) -> None:
    missing = [byte for byte in range(256) if bytes([byte]) not in ids]
    if missing:
        raise TokenizerError(
            f"{what} {len(missing)} of the 256 bytes have no token, the first is 0x{missing[0]:02x}; "
            "tiktoken needs them all"
        )


def _merges(ids: Mapping[bytes, int]) -> list[tuple[int, int]]:
    """The merges that tiktoken makes, at most one for each token, in order of rank.

    tiktoken merges adjacent tokens whose joined bytes are a token, lowest rank first, and of equal ranks the leftmost.
    Many pairs may spell one token, but merging reaches only one of them: as long as nothing is merged across the edges
    of some bytes, merging between the edges is the same as merging these bytes alone. So the pair that makes a token is
    what merging leaves of the token's bytes before its last step. All tokens merged before are shorter, though their
    ranks may be higher than the token's own.
    """
    table: dict[tuple[int, int], tuple[int, int]] = {}
    for token, token_id in sorted(ids.items(), key=lambda entry: len(entry[0])):
        parts = merge_pretoken([ids[token[place : place + 1]] for place in range(len(token))], table)
        if len(parts) == 2:
            table[parts[0], parts[1]] = (token_id, token_id)
    return sorted(table, key=table.__getitem__)


def _check_exportable(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.tokens
    if vocabulary.byte_tokens:
        raise TokenizerError("a tiktoken file cannot hold byte fallback; save tokenizer.json instead")
    unsupported = [t for t in vocabulary.added if not t.special or t.lstrip or t.rstrip]
    if unsupported or vocabulary.nfc or vocabulary.prefix_space or vocabulary.prepended_space:
        what = "the NFC normalizer" if vocabulary.nfc else "the space before the text"
        if unsupported:
            what = f"the added token {unsupported[0].content!r} with its flags"
        raise TokenizerError(f"a tiktoken file cannot hold {what}; save tokenizer.json instead")
    check_tiktoken(vocabulary.pattern)
    if vocabulary.pattern.isalnum():
        raise TokenizerError(
            f"a tiktoken file cannot hold the pattern {vocabulary.pattern!r}, which would be read as a name; save "
            "tokenizer.json instead"
        )
    _check_bytes("a tiktoken file cannot hold this vocabulary:", vocabulary.ids)
    if _merges(vocabulary.ids) != [*vocabulary.merges]:
        raise TokenizerError(
            "in a tiktoken file, ids are ranks, but these ids are not in the order of the merges; save tokenizer.json "
            "instead"
        )
    # tiktoken finds every token of a rank file as a whole pretoken.
    merged = {tokens[left] + tokens[right] for left, right in vocabulary.merges}
    whole = next((token for token in tokens.values() if len(token) > 1 and token not in merged), None)
    if whole is not None and not vocabulary.ignore_merges:
        raise TokenizerError(
            f"no merge gives the token {whole!r}, but tiktoken finds it as a whole pretoken; save tokenizer.json"
        )
