"""What a tokenizer is made of, as plain data: tokens, merges, added tokens and the pattern."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shared.bpe.byte_alphabet import from_printable
from shared.bpe.errors import TokenizerError


@dataclass(frozen=True)
class AddedToken:
    """A token matched in the text itself, outside the merges. Flags are named as in Hugging Face's tokenizer.json.

    Attributes:
        special: A control token, recognised only where the caller allows it; other added tokens always are.
        lstrip: Takes the white space to its left with it.
        rstrip: Takes the white space to its right with it.
        normalized: Kept for export; it makes no difference here.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The immutable data of a byte-level BPE tokenizer, checked on construction.

    An added token's text may not equal the printable form of an ordinary token, because tokenizer.json holds both kinds
    under one key. So every id has one pair of kind and bytes, and every such pair one id.

    Attributes:
        tokens: The ordinary tokens by id; ids may have holes. Each of the 256 bytes is one.
        merges: Pairs of ids in order of rank; what a pair merges to is the token of the joined bytes.
        added: Added tokens, by id.
        pattern: The regular expression that cuts text into pieces.
        nfc: Text is brought to Unicode NFC before it is cut.
        ignore_merges: A piece that is a token as a whole needs no merges (Llama 3, tiktoken).
        prefix: Ids put before a text under `add_special_tokens`, such as a begin-of-text id.
        suffix: Ids put after it.
        bos: The begin-of-text token, where known.
        eos: The end-of-text token, where known.

    Raises:
        TokenizerError: If the parts do not fit together.
    """

    tokens: Mapping[int, bytes]
    merges: tuple[tuple[int, int], ...]
    added: tuple[AddedToken, ...]
    pattern: str
    nfc: bool = False
    ignore_merges: bool = False
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    bos: str | None = None
    eos: str | None = None

    def __post_init__(self) -> None:
        self._check_tokens()
        self._check_added()
        self._check_merges()

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Ids of the ordinary tokens by their bytes."""
        return {token: token_id for token_id, token in self.tokens.items()}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that decides ids: see `Tokenizer.fingerprint`."""
        content = {
            "pattern": self.pattern,
            "nfc": self.nfc,
            "ignore_merges": self.ignore_merges,
            "tokens": sorted((token_id, token.hex()) for token_id, token in self.tokens.items()),
            "merges": self.merges,
            "added": [(t.id, t.content, t.special, t.lstrip, t.rstrip) for t in self.added],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def _check_tokens(self) -> None:
        if len(self.ids) != len(self.tokens):
            seen: dict[bytes, int] = {}
            for token_id, token in self.tokens.items():
                if token in seen:
                    raise TokenizerError(f"the ids {seen[token]} and {token_id} both stand for the token {token!r}")
                seen[token] = token_id
        if b"" in self.ids:
            raise TokenizerError(f"the token with id {self.ids[b'']} is empty")
        missing = [byte for byte in range(256) if bytes([byte]) not in self.ids]
        if missing:
            raise TokenizerError(
                f"{len(missing)} of the 256 bytes have no token, the first is 0x{missing[0]:02x}; "
                "a byte-level vocabulary needs them all, or some text could not be encoded"
            )

    def _check_added(self) -> None:
        seen: dict[str, int] = {}
        taken = set(self.tokens)
        for token in self.added:
            if not token.content:
                raise TokenizerError(f"the added token with id {token.id} is empty")
            if token.content in seen:
                raise TokenizerError(
                    f"the added token {token.content!r} appears twice, as {seen[token.content]} and {token.id}"
                )
            if token.id in taken:
                raise TokenizerError(f"the id {token.id} of the added token {token.content!r} belongs to another token")
            if self._is_printable_form(token.content):
                raise TokenizerError(
                    f"the added token {token.content!r} is spelt like an ordinary token; choose a text such as <|name|>"
                )
            seen[token.content] = token.id
            taken.add(token.id)

    def _is_printable_form(self, text: str) -> bool:
        try:
            return from_printable(text) in self.ids
        except TokenizerError:
            return False

    def _check_merges(self) -> None:
        tokens, ids = self.tokens, self.ids
        for rank, (left, right) in enumerate(self.merges):
            if tokens[left] + tokens[right] not in ids:
                raise TokenizerError(
                    f"merge {rank} joins {self.tokens[left]!r} and {self.tokens[right]!r}, but the vocabulary has no "
                    f"token {self.tokens[left] + self.tokens[right]!r}"
                )


def encode_utf8(text: str) -> bytes:
    """Text as UTF-8.

    Raises:
        TokenizerError: If the text holds a lone surrogate, which has no UTF-8 form; names its position.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}; "
            "it is half of a UTF-16 pair and no character, so it cannot be encoded"
        ) from None
