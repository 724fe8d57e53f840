"""The data of a tokenizer: tokens, merges, added tokens and the pattern."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import orjson

from shared.bpe.byte_alphabet import from_printable, to_printable
from shared.bpe.errors import SurrogateError, TokenizerError
from shared.bpe.piece_spelling import BYTE_PIECES, SPACE_MARK, from_piece, to_piece
from shared.system.garbage import collection_paused

# Bytes that never occur in UTF-8: 0xc0 and 0xc1 would begin overlong forms, those from 0xf5 on code points beyond
# U+10FFFF (RFC 3629, section 3).
INVALID_UTF8_BYTES = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])
# Limits of the tables for encoding (see `kernels.tables`): eight times the largest vocabularies known.
MAX_ID = (1 << 21) - 3
MAX_MERGES = (1 << 22) - 1
# Beginnings of characters of three and four bytes, which the tables give ids of their own.
_MAX_PARTS = 1 << 15


@dataclass(frozen=True)
class AddedToken:
    """A token matched in the text itself, without merges. Flags are named as in Hugging Face's tokenizer.json.

    Attributes:
        special: A control token, recognized only if the caller allows it; other added tokens always are.
        lstrip: Also matches the white space to its left.
        rstrip: Also matches the white space to its right.
        normalized: Searched for in the normalized text, after the others.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The immutable data of a BPE tokenizer, checked on construction.

    There are two kinds. Byte-level BPE merges the bytes of a text. A SentencePiece vocabulary with *byte fallback*
    merges its characters, and those without a token become the tokens of their bytes.

    An added token's content may not equal the key of an ordinary token in tokenizer.json, which keeps both under one
    key; but one token may be both, with one id and the same bytes. So every id has one spelling.

    Attributes:
        tokens: The ordinary tokens by id; ids may have gaps. Text with bytes that have no token cannot be encoded.
            With byte fallback, these are the pieces, a space in them written as one and not as U+2581.
        merges: Pairs of ids in order of rank; a pair merges to the token of its joined bytes.
        added: Added tokens, by id.
        pattern: The regular expression that splits text into pretokens.
        nfc: Text is normalized to Unicode NFC first.
        prefix_space: A space is put before plain text that does not begin with one, also after an added token.
        prepended_space: A space is put before plain text, even if it begins with one: SentencePiece's dummy prefix.
        only_first: `prefix_space` holds only where a text begins with plain text, not after an added token.
        byte_tokens: With byte fallback, the id of the token of each byte; empty for byte-level BPE.
        strips_space: Decoding omits one space at the beginning of a text.
        ignore_merges: A pretoken that is itself a token is not merged (Llama 3, tiktoken).
        prefix: Ids put before a text with `add_special_tokens`, such as a begin-of-text id.
        suffix: Ids put after it.
        bos: The begin-of-text token, if known.
        eos: The end-of-text token, if known.

    Raises:
        TokenizerError: The parts do not fit together.
    """

    tokens: Mapping[int, bytes]
    merges: tuple[tuple[int, int], ...]
    added: tuple[AddedToken, ...]
    pattern: str
    nfc: bool = False
    prefix_space: bool = False
    prepended_space: bool = False
    only_first: bool = False
    byte_tokens: tuple[int, ...] = ()
    strips_space: bool = False
    ignore_merges: bool = False
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    bos: str | None = None
    eos: str | None = None

    def __post_init__(self) -> None:
        self._check_tokens()
        self._check_byte_tokens()
        self._check_added()
        self._check_merges()

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Ids of the ordinary tokens by their bytes."""
        return {token: token_id for token_id, token in self.tokens.items()}

    @cached_property
    def spelled(self) -> dict[int, bytes]:
        """The bytes of all tokens except the added ones, by id."""
        return {**self.tokens, **{token_id: bytes([byte]) for byte, token_id in enumerate(self.byte_tokens)}}

    def key_of(self, token: bytes) -> str:
        """An ordinary token's key in tokenizer.json."""
        return to_piece(token) if self.byte_tokens else to_printable(token)

    def units_of(self, token: bytes) -> list[bytes]:
        """What merging an ordinary token begins with: its bytes, or with byte fallback its characters."""
        if self.byte_tokens:
            return [character.encode() for character in token.decode()]
        return [token[place : place + 1] for place in range(len(token))]

    @cached_property
    def merged(self) -> list[int]:
        """The id of the token that each merge gives."""
        tokens, ids = self.tokens, self.ids
        return [ids.get(tokens[left] + tokens[right], -1) for left, right in self.merges]

    @cached_property
    def missing_bytes(self) -> bytes:
        """The bytes that occur in UTF-8 but have no token."""
        if self.byte_tokens:
            return b""
        return bytes(b for b in range(256) if b not in INVALID_UTF8_BYTES and bytes([b]) not in self.ids)

    def with_special_tokens(self, contents: Sequence[str]) -> "Vocabulary":
        """This vocabulary and more special tokens, with the ids after its last.

        Raises:
            TokenizerError: One of them is there already, or has the spelling of an ordinary token.
        """
        there = {token.content for token in self.added}
        for number, content in enumerate(contents):
            if content in there or content in contents[:number]:
                raise TokenizerError(f"{content!r} is a special token already")
        first = max((*self.spelled, *(token.id for token in self.added))) + 1
        new = (AddedToken(first + number, content) for number, content in enumerate(contents))
        return replace(self, added=(*self.added, *new))

    @property
    def normalizes(self) -> bool:
        """Whether some added tokens are searched for in another text than others: see `AddedToken.normalized`."""
        return self.nfc or self.prepended_space

    @property
    def alters_text(self) -> bool:
        """Whether decoding the ids of a text may return another text, even if no special token is allowed.

        A special token strips white space only where it is allowed.
        """
        alters_spaces = self.prefix_space or self.prepended_space or bool(self.byte_tokens)
        return self.nfc or alters_spaces or any(not t.special and (t.lstrip or t.rstrip) for t in self.added)

    @cached_property
    @collection_paused()
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that ids depend on: see `Tokenizer.fingerprint`."""
        content = {
            "pattern": self.pattern,
            "nfc": self.nfc,
            "ignore_merges": self.ignore_merges,
            "added": [(t.id, t.content, t.special, t.lstrip, t.rstrip) for t in self.added],
        }
        # Only if it has an effect, since existing token files carry fingerprints that were made without it.
        if self.prefix_space:
            content["prefix_space"] = True
        if self.prepended_space:
            content["prepended_space"] = True
        if self.only_first:
            content["only_first"] = True
        if self.byte_tokens:
            content["byte_tokens"] = self.byte_tokens
        normalized = [t.id for t in self.added if t.normalized]
        if normalized and (self.normalizes or len(normalized) < len(self.added)):
            content["normalized"] = normalized
        written = {name: json.dumps(value, separators=(",", ":")).encode() for name, value in content.items()}
        # Both hold ASCII only, which orjson writes as json does, in a tenth of the time.
        written["tokens"] = orjson.dumps(sorted(zip(self.tokens, map(bytes.hex, self.tokens.values()), strict=True)))
        written["merges"] = orjson.dumps(self.merges)
        joined = b",".join(b'"%s":%s' % (name.encode(), written[name]) for name in sorted(written))
        return hashlib.sha256(b"{%s}" % joined).hexdigest()

    def _check_tokens(self) -> None:
        if len(self.ids) != len(self.tokens):
            seen: dict[bytes, int] = {}
            for token_id, token in self.tokens.items():
                if token in seen:
                    raise TokenizerError(f"the ids {seen[token]} and {token_id} have the same token {token!r}")
                seen[token] = token_id
        if b"" in self.ids:
            raise TokenizerError(f"the token with id {self.ids[b'']} is empty")
        if not self.tokens:
            raise TokenizerError("the vocabulary has no tokens")
        last = max((*self.spelled, *(token.id for token in self.added)))
        most = MAX_ID - _MAX_PARTS if self.byte_tokens else MAX_ID
        if last > most or len(self.merges) > MAX_MERGES:
            raise TokenizerError(
                f"ids up to {most} and {MAX_MERGES} merges are supported; found the id {last} and {len(self.merges)} "
                "merges"
            )

    def _check_byte_tokens(self) -> None:
        if not self.byte_tokens:
            return
        if len(self.byte_tokens) != 256 or len(self.spelled) != 256 + len(self.tokens):
            raise TokenizerError("byte fallback needs 256 tokens of bytes, with ids of their own")
        for token_id, token in self.tokens.items():
            text = token.decode(errors="replace")
            if text.encode() != token or SPACE_MARK in text:
                raise TokenizerError(
                    f"the piece with id {token_id} is {token!r}, which is not UTF-8 text without U+2581"
                )
            if text in BYTE_PIECES:
                raise TokenizerError(
                    f"the piece with id {token_id} is {text!r}, which is how the token of a byte is spelled"
                )

    def _check_added(self) -> None:
        seen: dict[str, int] = {}
        taken: set[int] = set()
        for token in self.added:
            if not token.content:
                raise TokenizerError(f"the added token with id {token.id} is empty")
            if token.content in seen:
                raise TokenizerError(
                    f"the added token {token.content!r} appears twice, as {seen[token.content]} and {token.id}"
                )
            if token.id in taken:
                raise TokenizerError(f"the id {token.id} of the added token {token.content!r} belongs to another token")
            if not self._has_one_spelling(token):
                raise TokenizerError(
                    f"the added token {token.content!r} has the id {token.id} or the spelling of an ordinary token "
                    "with other bytes or another id; choose another content, such as <|name|>"
                )
            seen[token.content] = token.id
            taken.add(token.id)

    def _has_one_spelling(self, token: AddedToken) -> bool:
        """Whether no ordinary token has its id or key, or one has both, with the same bytes."""
        ordinary = self.spelled.get(token.id)
        if ordinary is not None:
            return ordinary == token.content.encode() and self.key_of(ordinary) == token.content
        if self.byte_tokens:
            return from_piece(token.content) not in self.ids and token.content not in BYTE_PIECES
        try:
            return from_printable(token.content) not in self.ids
        except TokenizerError:
            return True

    def _check_merges(self) -> None:
        unknown = {*chain.from_iterable(self.merges)} - self.tokens.keys()
        if unknown:
            rank, pair = next((rank, pair) for rank, pair in enumerate(self.merges) if not unknown.isdisjoint(pair))
            raise TokenizerError(
                f"merge {rank} joins the ids {pair[0]} and {pair[1]}, of which one is not an ordinary token"
            )
        if -1 in self.merged:
            rank = self.merged.index(-1)
            left, right = map(self.tokens.__getitem__, self.merges[rank])
            raise TokenizerError(
                f"merge {rank} joins {left!r} and {right!r}, but the vocabulary has no token {left + right!r}"
            )


def encode_utf8(text: str) -> bytes:
    """A text as UTF-8.

    Raises:
        SurrogateError: The text holds a lone surrogate, which has no UTF-8 form; names its position.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SurrogateError(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}; "
            "it is half of a UTF-16 pair, not a character, and cannot be encoded"
        ) from None
