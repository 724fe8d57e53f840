"""`POST /decode`: token ids to text, from JSON or from a raw body of little-endian integers."""

from collections.abc import Awaitable
from typing import Any

import numpy as np
import orjson
from fastapi import Request, Response

from services.tokenizer.openapi import RAW_DECODE
from services.tokenizer.query import IDS, TEXT, RawQuery
from services.tokenizer.schemas import DecodeRequest, DecodeResponse
from services.tokenizer.service import ERROR_RESPONSES, TokenizerService, check_batch_size
from shared.bpe import TextTooLongError, Tokenizer, TokenizerError
from shared.http import ApiError, BodyRoute


def decode_route(service: TokenizerService) -> BodyRoute:
    """The route."""
    max_items, max_bytes = service.settings.max_batch_items, service.settings.max_answer_bytes

    def decode(body: DecodeRequest, request: Request) -> Awaitable[bytes]:
        """Turn token ids into text: the bytes of all tokens are joined first, then decoded."""
        return service.run(body.size, request, decode_json, body, max_items, max_bytes)

    def decode_raw_body(body: bytes, request: Request) -> Awaitable[Response]:
        return service.run(len(body), request, decode_raw, body, request, max_bytes)

    return BodyRoute(
        "/decode",
        decode,
        raw={IDS: decode_raw_body},
        response_model=DecodeResponse,
        responses=ERROR_RESPONSES,
        openapi_extra=RAW_DECODE,
    )


def decode_json(tokenizer: Tokenizer, request: DecodeRequest, max_items: int, max_bytes: int) -> bytes:
    """The text of one list of ids or of each list of a batch, as the JSON of `DecodeResponse`.

    Raises:
        ApiError: 400, for a batch with more than `max_items` lists, for text of more than `max_bytes` in JSON, and for
            what the tokenizer refuses.
    """
    tokens = request.tokens
    is_batch = bool(tokens) and isinstance(tokens[0], list)
    if is_batch:
        check_batch_size("tokens", len(tokens), max_items)
    texts = []
    left = max_bytes
    for index, ids in enumerate(tokens if is_batch else [tokens]):
        name = f"tokens[{index}]" if is_batch else "tokens"
        texts.append(_decode(tokenizer, ids, request, name, max_bytes))
        left -= _size_in_json(texts[-1])
        if left < 0:
            raise _answer_too_large(max_bytes)
    text = texts if is_batch else texts[0]
    return orjson.dumps({"text": text, "fingerprint": tokenizer.fingerprint})


def decode_raw(tokenizer: Tokenizer, body: bytes, request: Request, max_bytes: int) -> Response:
    """The text of a body of ids.

    Raises:
        ApiError: 400 for a body that ends within an id, an id that no token has, text of more than `max_bytes`, and
            bytes that are not UTF-8 if `errors` is `strict`; 422 for invalid query parameters.
    """
    query = RawQuery(request.query_params, "skip_special_tokens", "errors", "dtype")
    dtype, errors = query.dtype(tokenizer), query.errors()
    if len(body) % dtype.itemsize:
        message = f"the body has {len(body):,} bytes, not a multiple of the {dtype.itemsize} bytes of a {dtype.name} id"
        raise ApiError(400, f"{message}; the query parameter 'dtype' sets their width")
    ids: Any = np.frombuffer(body, dtype)
    skip = query.flag("skip_special_tokens")
    try:
        text = tokenizer.decode_bytes(ids, skip_special_tokens=skip, max_bytes=max_bytes)
        if not _is_utf8(text):
            text = tokenizer.decode(ids, errors=errors, skip_special_tokens=skip).encode()
            if len(text) > max_bytes:  # U+FFFD takes three bytes
                raise _answer_too_large(max_bytes)
    except TextTooLongError:
        raise _answer_too_large(max_bytes) from None
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    headers = {"X-Tokenizer-Fingerprint": tokenizer.fingerprint}
    return Response(text, media_type=f"{TEXT}; charset=utf-8", headers=headers)


def _decode(tokenizer: Tokenizer, ids: Any, request: DecodeRequest, param: str, max_bytes: int) -> str:
    try:
        return tokenizer.decode(
            ids, errors=request.errors, skip_special_tokens=request.skip_special_tokens, max_bytes=max_bytes
        )
    except TextTooLongError:
        raise _answer_too_large(max_bytes) from None
    except TokenizerError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error


def _size_in_json(text: str) -> int:
    """Bytes of a text in JSON, where a control character takes six."""
    data = text.encode()
    return len(data) + 5 * int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x20))


def _answer_too_large(max_bytes: int) -> ApiError:
    return ApiError(
        400,
        f"the text takes more than {max_bytes:,} bytes (OWNLM_MAX_ANSWER_BYTES): send several requests",
        param="tokens",
        code="answer_too_large",
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
