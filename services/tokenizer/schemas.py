"""Requests and responses of the tokenizer service."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from services.tokenizer.settings import MAX_BATCH_ITEMS
from shared.http import AllowedSpecial, StrictModel

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


class InfoResponse(BaseModel):
    """The tokenizer being served."""

    service: Literal["tokenizer"] = "tokenizer"
    version: str
    model: str
    fingerprint: str
    vocab_size: int
    special_tokens: dict[str, int]
    limits: dict[str, int]
