"""`POST /vocabulary` and `POST /vocabulary/token`: which tokens there are, and how merges make them."""

import base64
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Request

from services.tokenizer.schemas import TokenRequest, TokenResponse, VocabularyRequest, VocabularyResponse
from services.tokenizer.service import TokenizerService
from services.tokenizer.vocabulary_index import VocabularyIndex
from shared.bpe import Tokenizer, TokenizerError, TreeNode
from shared.http import ApiError, BodyRoute, error_responses, short_json

_ERROR_RESPONSES = error_responses(400, 413, 415, 422, 503)
# Bytes of tokens after which an answer ends before its limit.
_MAX_BYTES = 1 << 18
# Ids of a token's own text in an answer.
_MAX_ENCODED = 1 << 8
# What merging a byte in Python takes, in characters of text that compiled code encodes.
_TREE_COST = 1 << 6

# For 262,144 tokens they take 80 ms and 5 MB, and 50 ms and 20 MB.
_index_of = lru_cache(maxsize=1)(VocabularyIndex)
_tree_of = lru_cache(maxsize=1)(Tokenizer.merge_tree)


def prepare_search(tokenizer: Tokenizer) -> None:
    """Do now what the first search would do."""
    _index_of(tokenizer)


def vocabulary_route(service: TokenizerService) -> BodyRoute:
    """The route of searches."""

    def vocabulary(body: VocabularyRequest, request: Request) -> Awaitable[bytes]:
        """Find tokens that contain a text or bytes, or list them from an id on."""
        return service.run(len(service.tokenizer), request, search_json, body)

    return BodyRoute(
        "/vocabulary",
        vocabulary,
        response_model=VocabularyResponse,
        responses=_ERROR_RESPONSES,
    )


def token_route(service: TokenizerService) -> BodyRoute:
    """The route of single tokens."""

    def vocabulary_token(body: TokenRequest, request: Request) -> Awaitable[bytes]:
        """One token, the merges that make it from its bytes, and what encoding its text gives."""
        size = _TREE_COST * len(service.tokenizer.tokens.get(body.id, b""))
        return service.run(max(size, len(service.tokenizer)), request, token_json, body)

    return BodyRoute(
        "/vocabulary/token",
        vocabulary_token,
        response_model=TokenResponse,
        responses=_ERROR_RESPONSES,
    )


def search_json(tokenizer: Tokenizer, request: VocabularyRequest) -> bytes:
    """The tokens of a search, as the JSON of `VocabularyResponse`.

    Raises:
        ApiError: 400, for an id beyond the vocabulary.
    """
    found = _found(tokenizer, request)
    entries: list[dict[str, Any]] = []
    size = 0
    for token_id in found[request.first : request.first + request.limit].tolist():
        entries.append(_entry(tokenizer, token_id))
        size += len(tokenizer.tokens[token_id])
        if size > _MAX_BYTES:
            break
    content = {
        "tokens": entries,
        "total": len(found),
        "next": _next(request.first + len(entries), len(found)),
        "fingerprint": _index_of(tokenizer).fingerprint,
    }
    return orjson.dumps(content)


def token_json(tokenizer: Tokenizer, request: TokenRequest) -> bytes:
    """One token, as the JSON of `TokenResponse`.

    Raises:
        ApiError: 400, for an id that no token has.
    """
    token_id = request.id
    try:
        tokenizer.token_bytes(token_id)
    except TokenizerError as error:
        raise ApiError(400, f"id: {error}", param="id") from None
    # An added token is found in the text; those that are ordinary tokens too are made by merges as well.
    nodes: Sequence[TreeNode] = _tree_of(tokenizer, token_id) if token_id in tokenizer.vocabulary.tokens else []
    page = nodes[request.first : request.first + request.limit]
    encoded = _encoded(tokenizer, token_id)
    content = {
        **_entry(tokenizer, token_id),
        "encoded": None if encoded is None else encoded[:_MAX_ENCODED],
        "encoded_count": None if encoded is None else len(encoded),
        "merged": bool(nodes) and nodes[0].id == token_id,
        "tree": [node._asdict() for node in page],
        "total": len(nodes),
        "next": _next(request.first + len(page), len(nodes)),
        "fingerprint": tokenizer.fingerprint,
    }
    return orjson.dumps(content)


def _found(tokenizer: Tokenizer, request: VocabularyRequest) -> npt.NDArray[np.int64]:
    """The ids that a search finds, in its order."""
    index = _index_of(tokenizer)
    if request.text is not None:
        return index.containing(request.text.encode())
    if request.bytes is not None:
        return index.containing(bytes.fromhex(request.bytes))
    assert request.id is not None
    if request.id >= tokenizer.vocab_size:
        ids = f"0 to {tokenizer.vocab_size - 1}"
        raise ApiError(400, f"id: {short_json(request.id)} is beyond the ids {ids}", param="id")
    return index.since(request.id)


def _entry(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    token = tokenizer.tokens[token_id]
    return {
        "id": token_id,
        "bytes": base64.b64encode(token).decode(),
        "text": token.decode(errors="replace"),
        "special": token_id in _added_ids(tokenizer),
    }


@lru_cache(maxsize=1)
def _added_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token.id for token in tokenizer.vocabulary.added)


def _encoded(tokenizer: Tokenizer, token_id: int) -> list[int] | None:
    try:
        return tokenizer.encode(tokenizer.tokens[token_id].decode())
    except (UnicodeDecodeError, TokenizerError):
        return None


def _next(end: int, total: int) -> int | None:
    return end if end < total else None
