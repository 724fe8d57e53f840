"""Requests and responses of the tokenizer service."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from services.tokenizer.settings import MAX_BATCH_ITEMS
from shared.http import AllowedSpecial, StrictModel

_MAX_QUERY_CHARS = 1 << 18  # characters of a search, which are checked on the event loop
_SEARCHES = {"text": "string", "bytes": "string", "id": "integer"}

TokenId = Annotated[int, Field(ge=0)]
# Only the first invalid item is reported: pydantic describes each, which takes seconds for a million.
TokenList = Annotated[list[TokenId], Field(fail_fast=True), Tag("(one)")]
TokenLists = Annotated[
    list[Annotated[list[TokenId], Field(fail_fast=True)]],
    Field(max_length=MAX_BATCH_ITEMS, fail_fast=True),
    Tag("(batch)"),
]
Texts = Annotated[list[str], Field(max_length=MAX_BATCH_ITEMS, fail_fast=True), Tag("(batch)")]


def _text_tag(value: Any) -> str:
    return "(batch)" if isinstance(value, list) else "(one)"


def _tokens_tag(value: Any) -> str:
    return "(batch)" if isinstance(value, list) and value and isinstance(value[0], list) else "(one)"


class EncodeRequest(StrictModel):
    """One text or a batch of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "Once upon a time"},
                {"text": ["one", "two<|endoftext|>"], "allowed_special": "all", "return_pieces": True},
            ]
        }
    )

    text: Annotated[Annotated[str, Tag("(one)")] | Texts, Discriminator(_text_tag)] = Field(
        description="A string, or a list of strings"
    )
    allowed_special: AllowedSpecial = Field(
        default_factory=list,
        description='Special tokens recognized in the text: their names, or "all"; others are plain text',
    )
    add_special_tokens: bool = Field(False, description="Add the tokenizer's own, such as a begin-of-text token")
    return_pieces: bool = Field(False, description="Also return which part of the text each token is")

    @property
    def special(self) -> dict[str, Any]:
        """How special tokens are treated, as the arguments of `Tokenizer.encode`."""
        return {"allowed_special": self.allowed_special, "add_special_tokens": self.add_special_tokens}

    @property
    def size(self) -> int:
        """Characters in total."""
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


class Piece(BaseModel):
    """One token of an encoded text."""

    id: int
    bytes: str = Field(description="The token's bytes in base64: a token may be part of a character")
    text: str = Field(description="The bytes as text; incomplete characters become U+FFFD")
    start: int = Field(description="Its start in the text, in characters")
    end: int = Field(description="Its end in the text, in characters")
    special: bool


class EncodeResponse(BaseModel):
    """Token ids in the shape of the request's `text`."""

    tokens: list[int] | list[list[int]]
    count: int = Field(description="The number of tokens, summed over a batch")
    fingerprint: str = Field(description="Identifies the tokenizer: SHA-256 of everything that defines it")
    pieces: list[Piece] | list[list[Piece]] | None = Field(None, description="Present with `return_pieces`")


class DecodeRequest(StrictModel):
    """One list of token ids or a batch of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": [72, 105]}, {"tokens": [[72], [105]]}]})

    tokens: Annotated[TokenList | TokenLists, Discriminator(_tokens_tag)] = Field(
        description="A list of token ids, or a list of such lists"
    )
    skip_special_tokens: bool = Field(False, description="Leave special tokens out of the text")
    errors: Literal["replace", "strict"] = Field(
        "replace", description='Bytes that are not UTF-8: U+FFFD ("replace") or a 400 ("strict")'
    )

    @property
    def size(self) -> int:
        """Token ids in total."""
        if not self.tokens or not isinstance(self.tokens[0], list):
            return len(self.tokens)
        return sum(len(ids) for ids in self.tokens if isinstance(ids, list))


class DecodeResponse(BaseModel):
    """Text in the shape of the request's `tokens`."""

    text: str | list[str]
    fingerprint: str


class Page(StrictModel):
    """The part of a list that is returned."""

    first: int = Field(0, ge=0, description="Where the answer begins, counted from 0")
    limit: int = Field(100, ge=1, le=1000, description="The most items in the answer")


class VocabularyRequest(Page):
    """A search for tokens by text, by bytes or by id."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"text": "on"}, {"bytes": "f0 9f"}, {"id": 256}],
            "oneOf": [{"required": [name], "properties": {name: {"type": kind}}} for name, kind in _SEARCHES.items()],
        }
    )

    text: str | None = Field(
        None, min_length=1, max_length=_MAX_QUERY_CHARS, description="Tokens that contain this text"
    )
    bytes: str | None = Field(
        None,
        max_length=_MAX_QUERY_CHARS,
        description="Tokens that contain these bytes, in hexadecimal",
        json_schema_extra={"pattern": r"^[ \t\n\r\f\v]*([0-9a-fA-F]{2}[ \t\n\r\f\v]*)+$"},
    )
    id: int | None = Field(None, ge=0, description="Tokens from this id on")

    @field_validator("bytes")
    @classmethod
    def _is_hexadecimal(cls, value: str | None) -> str | None:
        try:
            if value is None or bytes.fromhex(value):
                return value
        except ValueError:
            pass
        raise ValueError("must be bytes of two hexadecimal digits each, such as e2 80 99")

    @model_validator(mode="after")
    def _is_one_search(self) -> Self:
        given = [name for name in _SEARCHES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of text, bytes and id, not {' and '.join(given) or 'none'}")
        return self


class Entry(BaseModel):
    """One token of the vocabulary."""

    id: int
    bytes: str = Field(description="Its bytes in base64")
    text: str = Field(description="The bytes as text; incomplete characters become U+FFFD")
    special: bool = Field(description="Whether it is an added token, which no merge makes")


class VocabularyResponse(BaseModel):
    """Tokens in order of length, then of id; from an id on, in order of id."""

    tokens: list[Entry]
    total: int = Field(description="How many tokens were found")
    next: int | None = Field(description="`first` of the request that continues; null at the end")
    fingerprint: str


class TokenRequest(Page):
    """One token, with its merge tree."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": 256}]})

    id: int = Field(ge=0)


class Node(BaseModel):
    """A token within a token."""

    depth: int = Field(description="0 for a root")
    id: int | None = Field(description="null for a byte that has no token")
    start: int = Field(description="Its first byte in the token")
    end: int = Field(description="The byte after its last")
    rank: int | None = Field(description="That of the merge that makes it, counted from 0; null for a byte")


class TokenResponse(Entry):
    """One token, with the page of its merge tree."""

    encoded: list[int] | None = Field(
        description="What encoding its text gives, special tokens as text: the first ids; null where its bytes are not "
        "UTF-8 or cannot be encoded"
    )
    encoded_count: int | None = Field(description="How many ids encoding its text gives")
    merged: bool = Field(description="Whether merging its bytes gives this token")
    tree: list[Node] = Field(
        description="Nodes in preorder: each before its left part, and that before its right part; several roots where "
        "merging its bytes gives several tokens"
    )
    total: int = Field(description="Nodes of the whole tree; 0 for an added token")
    next: int | None = Field(description="`first` of the request that continues the tree; null at the end")
    fingerprint: str


class InfoResponse(BaseModel):
    """The tokenizer being served."""

    service: Literal["tokenizer"] = "tokenizer"
    version: str
    model: str
    fingerprint: str
    vocab_size: int
    special_tokens: dict[str, int]
    limits: dict[str, int]
