"""Answers in JSON: what `/encode` and `/decode` write for a request that was read."""

import base64
from typing import Any

import numpy.typing as npt
import orjson

from services.tokenizer.schemas import DecodeRequest, EncodeRequest
from shared.bpe import Tokenizer, TokenizerError
from shared.http import ApiError

# Characters of a text whose ids are had with as little around them as can be.
_SHORT = 1 << 16


def encode(tokenizer: Tokenizer, request: EncodeRequest, max_items: int) -> bytes:
    """The ids of one text or of each of a batch, as `EncodeResponse`.

    Raises:
        ApiError: 400, for a batch that is too long and for what the tokenizer refuses.
    """
    if isinstance(request.text, list):
        _check_batch("text", len(request.text), max_items)
    try:
        return _encode_with_pieces(tokenizer, request) if request.return_pieces else _encode(tokenizer, request)
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error


def decode(tokenizer: Tokenizer, request: DecodeRequest, max_items: int) -> bytes:
    """The text of one list of ids or of each of a batch, as `DecodeResponse`.

    Raises:
        ApiError: 400, for a batch that is too long and for what the tokenizer refuses.
    """
    tokens = request.tokens
    text: str | list[str]
    if tokens and isinstance(tokens[0], list):
        _check_batch("tokens", len(tokens), max_items)
        text = [_decode_one(tokenizer, ids, request, f"tokens[{index}]") for index, ids in enumerate(tokens)]
    else:
        text = _decode_one(tokenizer, tokens, request, "tokens")
    return orjson.dumps({"text": text, "fingerprint": tokenizer.fingerprint})


def write_ids(tokenizer: Tokenizer, ids: npt.NDArray[Any]) -> bytes:
    """The ids of one text as `EncodeResponse`."""
    answer = {"tokens": ids, "count": len(ids), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _check_batch(field: str, items: int, limit: int) -> None:
    if items > limit:
        raise ApiError(400, f"{field}: {items} items, the limit is {limit} (OWNLM_MAX_BATCH_ITEMS)", param=field)


def _encode(tokenizer: Tokenizer, request: EncodeRequest) -> bytes:
    special: dict[str, Any] = {
        "allowed_special": request.allowed_special,
        "add_special_tokens": request.add_special_tokens,
    }
    if isinstance(request.text, str) and len(request.text) <= _SHORT:
        return write_ids(tokenizer, tokenizer.encode_to_numpy(request.text, **special))
    # One thread: how many requests are worked on at once is what OWNLM_CPU_THREADS sets.
    if isinstance(request.text, str):
        return write_ids(tokenizer, tokenizer.encode_batch_to_numpy([request.text], max_threads=1, **special)[0])
    batch = tokenizer.encode_batch_to_numpy(request.text, max_threads=1, **special)
    answer = {"tokens": batch, "count": sum(map(len, batch)), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_with_pieces(tokenizer: Tokenizer, request: EncodeRequest) -> bytes:
    single = isinstance(request.text, str)
    texts = [request.text] if isinstance(request.text, str) else request.text
    pieces = [_pieces(tokenizer, text, request) for text in texts]
    tokens = [[piece["id"] for piece in text_pieces] for text_pieces in pieces]
    answer = {
        "tokens": tokens[0] if single else tokens,
        "count": sum(map(len, tokens)),
        "fingerprint": tokenizer.fingerprint,
        "pieces": pieces[0] if single else pieces,
    }
    return orjson.dumps(answer)


def _pieces(tokenizer: Tokenizer, text: str, request: EncodeRequest) -> list[dict[str, Any]]:
    found = tokenizer.encode_with_pieces(
        text, allowed_special=request.allowed_special, add_special_tokens=request.add_special_tokens
    )
    return [
        {
            "id": piece.id,
            "bytes": base64.b64encode(piece.bytes).decode(),
            "text": piece.bytes.decode("utf-8", errors="replace"),
            "start": piece.start,
            "end": piece.end,
            "special": piece.special,
        }
        for piece in found
    ]


def _decode_one(tokenizer: Tokenizer, ids: Any, request: DecodeRequest, param: str) -> str:
    try:
        return tokenizer.decode(ids, errors=request.errors, skip_special_tokens=request.skip_special_tokens)
    except TokenizerError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error
