"""Answers in JSON: what `/encode` and `/decode` write for a request that was read."""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from services.tokenizer.schemas import DecodeRequest, EncodeRequest
from shared.bpe import TextTooLongError, Tokenizer, TokenizerError
from shared.http import ApiError

# Each takes 90 bytes of an answer, and a few microseconds.
_MAX_PIECES = 1 << 17
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


def decode(tokenizer: Tokenizer, request: DecodeRequest, max_items: int, max_bytes: int) -> bytes:
    """The text of one list of ids or of each of a batch, as `DecodeResponse`.

    Raises:
        ApiError: 400, for a batch that is too long, for text that takes more than `max_bytes` in JSON, and for what the
            tokenizer refuses.
    """
    tokens = request.tokens
    is_batch = bool(tokens) and isinstance(tokens[0], list)
    if is_batch:
        _check_batch("tokens", len(tokens), max_items)
    texts = []
    left = max_bytes
    for index, ids in enumerate(tokens if is_batch else [tokens]):
        name = f"tokens[{index}]" if is_batch else "tokens"
        texts.append(_decode_one(tokenizer, ids, request, name, max_bytes))
        left -= _size_in_json(texts[-1])
        if left < 0:
            raise answer_too_large(max_bytes)
    text = texts if is_batch else texts[0]
    return orjson.dumps({"text": text, "fingerprint": tokenizer.fingerprint})


def write_ids(tokenizer: Tokenizer, ids: npt.NDArray[Any]) -> bytes:
    """The ids of one text as `EncodeResponse`."""
    answer = {"tokens": ids, "count": len(ids), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def answer_too_large(max_bytes: int) -> ApiError:
    """The refusal of an answer with more text than a request may ask for."""
    return ApiError(
        400,
        f"the text would take more than {max_bytes:,} bytes (OWNLM_MAX_ANSWER_BYTES): send several requests",
        param="tokens",
        code="answer_too_large",
    )


def _size_in_json(text: str) -> int:
    """Bytes of a text in an answer, where a control character takes six."""
    data = text.encode()
    return len(data) + 5 * int(np.count_nonzero(np.frombuffer(data, np.uint8) < 0x20))


def _check_batch(field: str, items: int, limit: int) -> None:
    if items > limit:
        raise ApiError(400, f"{field}: {items} items, the limit is {limit} (OWNLM_MAX_BATCH_ITEMS)", param=field)


def _encode(tokenizer: Tokenizer, request: EncodeRequest) -> bytes:
    special = _special(request)
    if isinstance(request.text, str) and len(request.text) <= _SHORT:
        return write_ids(tokenizer, tokenizer.encode_to_numpy(request.text, **special))
    # One thread: how many requests are worked on at once is what OWNLM_CPU_THREADS sets.
    if isinstance(request.text, str):
        return write_ids(tokenizer, tokenizer.encode_batch_to_numpy([request.text], max_threads=1, **special)[0])
    batch = tokenizer.encode_batch_to_numpy(request.text, max_threads=1, **special)
    answer = {"tokens": batch, "count": sum(map(len, batch)), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _special(request: EncodeRequest) -> dict[str, Any]:
    return {"allowed_special": request.allowed_special, "add_special_tokens": request.add_special_tokens}


def _encode_with_pieces(tokenizer: Tokenizer, request: EncodeRequest) -> bytes:
    single = isinstance(request.text, str)
    texts = [request.text] if isinstance(request.text, str) else request.text
    count = sum(map(len, tokenizer.encode_batch_to_numpy(texts, max_threads=1, **_special(request))))
    if count > _MAX_PIECES:
        message = f"return_pieces: the text has {count:,} tokens, the limit is {_MAX_PIECES:,}: send it in parts"
        raise ApiError(400, message, param="return_pieces", code="answer_too_large")
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
    found = tokenizer.encode_with_offsets(text, **_special(request))
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


def _decode_one(tokenizer: Tokenizer, ids: Any, request: DecodeRequest, param: str, max_bytes: int) -> str:
    try:
        return tokenizer.decode(
            ids, errors=request.errors, skip_special_tokens=request.skip_special_tokens, max_bytes=max_bytes
        )
    except TextTooLongError:
        raise answer_too_large(max_bytes) from None
    except TokenizerError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error
