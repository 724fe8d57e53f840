"""`POST /encode`: text to token ids, from JSON or from a raw body of UTF-8."""

import base64
import re
from collections.abc import Awaitable
from email.message import Message
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Request, Response

from services.tokenizer.openapi import RAW_ENCODE
from services.tokenizer.query import IDS, TEXT, RawQuery
from services.tokenizer.schemas import EncodeRequest, EncodeResponse
from services.tokenizer.service import ERROR_RESPONSES, TokenizerService, check_batch_size
from shared.bpe import Tokenizer, TokenizerError
from shared.http import ApiError, BodyRoute, short_json

_REFUSED = re.compile(r"q=0(\.0*)?")

# Each takes 90 bytes of a response, and a few microseconds.
_MAX_PIECES = 1 << 17
# In columns of a raw answer, each takes 18 to 30 bytes.
_MAX_RAW_PIECES = 1 << 20
# Bytes from which it is faster to encode a body than the string that it is.
_LONG_BODY = 1 << 14


def encode_route(service: TokenizerService) -> BodyRoute:
    """The route."""
    max_items = service.settings.max_batch_items

    def encode(body: EncodeRequest, request: Request) -> Awaitable[bytes]:
        """Turn text into token ids. Text that spells a special token stays text unless `allowed_special` names it."""
        return service.run(body.size, request, encode_json, body, max_items)

    def encode_raw_body(body: bytes, request: Request) -> Awaitable[bytes | Response]:
        return service.run(len(body), request, encode_raw, body, request)

    return BodyRoute(
        "/encode",
        encode,
        raw={TEXT: encode_raw_body},
        response_model=EncodeResponse,
        responses=ERROR_RESPONSES,
        openapi_extra=RAW_ENCODE,
    )


def encode_json(tokenizer: Tokenizer, request: EncodeRequest, max_items: int) -> bytes:
    """The ids of one text or of each text of a batch, as the JSON of `EncodeResponse`.

    Raises:
        ApiError: 400, for a batch with more than `max_items` texts, and for what the tokenizer refuses.
    """
    text = request.text
    if isinstance(text, list):
        check_batch_size("text", len(text), max_items)
    try:
        if request.return_pieces:
            return _encode_with_pieces(tokenizer, request)
        batch = _encode(tokenizer, request)
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    if isinstance(text, str):
        return _ids_as_json(tokenizer, batch[0])
    content = {"tokens": batch, "count": sum(map(len, batch)), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode(tokenizer: Tokenizer, request: EncodeRequest) -> list[npt.NDArray[np.uint32]]:
    """The ids of each text, on one thread: OWNLM_CPU_THREADS limits how many requests are processed at once."""
    if isinstance(request.text, str):
        return [tokenizer.encode_to_numpy(request.text, max_threads=1, **request.special)]
    return tokenizer.encode_batch_to_numpy(request.text, max_threads=1, **request.special)


def encode_raw(tokenizer: Tokenizer, body: bytes, request: Request) -> bytes | Response:
    """The ids of a body of text: raw if the client accepts this, else as the JSON of `EncodeResponse`.

    Raises:
        ApiError: 400 for a body that is not UTF-8, with the byte, and for what the tokenizer refuses; 415 for other
            character sets; 422 for invalid query parameters.
    """
    _check_charset(request.headers["content-type"])
    query = RawQuery(request.query_params, "allowed_special", "add_special_tokens", "dtype", "return_pieces")
    dtype = query.dtype(tokenizer)
    allowed_special, add_special_tokens = query.names("allowed_special"), query.flag("add_special_tokens")
    accepts_ids = _accepts_ids(request.headers.get("accept", ""))
    try:
        if query.flag("return_pieces"):
            if not accepts_ids:
                raise ApiError(400, f"return_pieces: send the header 'Accept: {IDS}', or JSON", param="return_pieces")
            return _raw_pieces(tokenizer, str(body, "utf-8"), allowed_special, add_special_tokens=add_special_tokens)
        ids = _encode_bytes(tokenizer, body, allowed_special, add_special_tokens, dtype)
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x} ({error.reason})"
        raise ApiError(400, message) from None
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    if not accepts_ids:
        return _ids_as_json(tokenizer, ids)
    return _raw_response(tokenizer, len(ids), ids.dtype, ids.tobytes())


def _raw_pieces(
    tokenizer: Tokenizer, text: str, allowed_special: list[str] | Literal["all"], *, add_special_tokens: bool
) -> Response:
    """The tokens of a text in columns: a quarter of the bytes of JSON, and nothing to parse.

    uint32[4, count]: the ids, their first characters, the characters after their last, and where their bytes end;
    uint8[count]: 1 for added tokens; then the bytes of all tokens, end to end.
    """
    special: dict[str, Any] = {"allowed_special": allowed_special, "add_special_tokens": add_special_tokens}
    count = len(tokenizer.encode_to_numpy(text, max_threads=1, **special))
    if count > _MAX_RAW_PIECES:
        raise _too_many_pieces(count, _MAX_RAW_PIECES)
    tokens = tokenizer.encode_to_columns(text, **special)
    byte_ends = np.cumsum(np.fromiter(map(len, tokens.bytes), np.int64, count))
    columns = [np.array(column, "<u4").tobytes() for column in (tokens.ids, tokens.starts, tokens.ends, byte_ends)]
    content = b"".join([*columns, bytes(tokens.special), *tokens.bytes])
    return _raw_response(tokenizer, count, np.dtype(np.uint32), content)


def _raw_response(tokenizer: Tokenizer, count: int, dtype: np.dtype[Any], content: bytes) -> Response:
    headers = {
        "X-Token-Count": str(count),
        "X-Token-Dtype": dtype.name,
        "X-Tokenizer-Fingerprint": tokenizer.fingerprint,
    }
    return Response(content, media_type=IDS, headers=headers)


def _ids_as_json(tokenizer: Tokenizer, ids: npt.NDArray[Any]) -> bytes:
    content = {"tokens": ids, "count": len(ids), "fingerprint": tokenizer.fingerprint}
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_with_pieces(tokenizer: Tokenizer, request: EncodeRequest) -> bytes:
    is_single = isinstance(request.text, str)
    texts = [request.text] if isinstance(request.text, str) else request.text
    count = sum(map(len, _encode(tokenizer, request)))  # first, in a fiftieth of the time of the pieces
    if count > _MAX_PIECES:
        raise _too_many_pieces(count, _MAX_PIECES)
    pieces = [_pieces(tokenizer, text, request) for text in texts]
    tokens = [[piece["id"] for piece in text_pieces] for text_pieces in pieces]
    content = {
        "tokens": tokens[0] if is_single else tokens,
        "count": sum(map(len, tokens)),
        "fingerprint": tokenizer.fingerprint,
        "pieces": pieces[0] if is_single else pieces,
    }
    return orjson.dumps(content)


def _pieces(tokenizer: Tokenizer, text: str, request: EncodeRequest) -> list[dict[str, Any]]:
    return [
        {
            "id": piece.id,
            "bytes": base64.b64encode(piece.bytes).decode(),
            "text": piece.bytes.decode("utf-8", errors="replace"),
            "start": piece.start,
            "end": piece.end,
            "special": piece.special,
        }
        for piece in tokenizer.encode_with_offsets(text, **request.special)
    ]


def _encode_bytes(
    tokenizer: Tokenizer,
    body: bytes,
    allowed_special: list[str] | Literal["all"],
    add_special_tokens: bool,
    dtype: np.dtype[Any],
) -> npt.NDArray[Any]:
    text = str(body, "utf-8")
    is_plain = not allowed_special and not add_special_tokens and tokenizer.can_split_bytes
    if is_plain and len(body) >= _LONG_BODY:
        return tokenizer.encode_documents(body, None, dtype)
    special: dict[str, Any] = {"allowed_special": allowed_special, "add_special_tokens": add_special_tokens}
    ids = tokenizer.encode_to_numpy(text, max_threads=1, **special)
    return ids.astype(dtype, copy=False)


def _too_many_pieces(count: int, limit: int) -> ApiError:
    message = f"return_pieces: {count:,} tokens exceed the limit of {limit:,}; send the text in parts"
    return ApiError(400, message, param="return_pieces", code="answer_too_large")


def _check_charset(content_type: str) -> None:
    message = Message()
    message["content-type"] = content_type
    charset = message.get_content_charset("utf-8")
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise ApiError(415, f"send text as UTF-8 (got charset {short_json(charset)})")


def _accepts_ids(accept: str) -> bool:
    """Whether the header `Accept` names ids, and not with a weight of 0 (RFC 9110, 12.4.2)."""
    for part in accept.lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        if name == IDS and not any(_REFUSED.fullmatch(parameter) for parameter in parameters):
            return True
    return False
