"""`/encode` and `/decode` for bulk work: UTF-8 in, ids as little-endian integers out, and back, without JSON."""

from email.message import Message
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import Request, Response
from starlette.datastructures import QueryParams

from services.tokenizer.json_answers import answer_too_large, write_ids
from shared.bpe import TextTooLongError, Tokenizer, TokenizerError
from shared.http import ApiError, shorten

TEXT = "text/plain"
IDS = "application/octet-stream"

_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


def encode(tokenizer: Tokenizer, body: bytes, request: Request) -> Response:
    """The ids of a body of text: raw where the client accepts this, else as in the answer to JSON.

    Raises:
        ApiError: 400 for what is not UTF-8, with the byte, and for what the tokenizer refuses; 415 for other character
            sets; 422 for query parameters.
    """
    _check_charset(request.headers["content-type"])
    query = _Query(request.query_params, "allowed_special", "add_special_tokens", "dtype")
    dtype = query.dtype(tokenizer)
    allowed = query.names("allowed_special")
    try:
        ids = _encode(tokenizer, body, allowed, query.flag("add_special_tokens"), dtype)
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x} ({error.reason})"
        raise ApiError(400, message) from None
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    if not _accepts_ids(request.headers.get("accept", "")):
        return Response(write_ids(tokenizer, ids), media_type="application/json")
    headers = {
        "X-Token-Count": str(len(ids)),
        "X-Token-Dtype": ids.dtype.name,
        "X-Tokenizer-Fingerprint": tokenizer.fingerprint,
    }
    return Response(ids.tobytes(), media_type=IDS, headers=headers)


def decode(tokenizer: Tokenizer, body: bytes, request: Request, max_bytes: int) -> Response:
    """The text of a body of ids.

    Raises:
        ApiError: 400 for a body that ends within an id, an id that is no token's, text of more than `max_bytes`, and
            bytes that are no text where `errors` is `strict`; 422 for query parameters.
    """
    query = _Query(request.query_params, "skip_special_tokens", "errors", "dtype")
    dtype, errors = query.dtype(tokenizer), query.errors()
    if len(body) % dtype.itemsize:
        message = f"the body has {len(body):,} bytes, which are no whole number of {dtype.name} ids"
        raise ApiError(400, f"{message}; the query parameter 'dtype' sets their width")
    ids: Any = np.frombuffer(body, dtype)
    skip = query.flag("skip_special_tokens")
    try:
        text = tokenizer.decode_bytes(ids, skip_special_tokens=skip, max_bytes=max_bytes)
        if not _is_utf8(text):
            text = tokenizer.decode(ids, errors=errors, skip_special_tokens=skip).encode()
            if len(text) > max_bytes:  # U+FFFD takes three bytes
                raise answer_too_large(max_bytes)
    except TextTooLongError:
        raise answer_too_large(max_bytes) from None
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    headers = {"X-Tokenizer-Fingerprint": tokenizer.fingerprint}
    return Response(text, media_type=f"{TEXT}; charset=utf-8", headers=headers)


def _encode(
    tokenizer: Tokenizer,
    body: bytes,
    allowed: list[str] | Literal["all"],
    add_special_tokens: bool,
    dtype: np.dtype[Any],
) -> npt.NDArray[Any]:
    text = str(body, "utf-8")
    if not allowed and not add_special_tokens:
        return tokenizer.encode_documents(body, None, dtype)
    # One thread: how many requests are worked on at once is what OWNLM_CPU_THREADS sets.
    [ids] = tokenizer.encode_batch_to_numpy(
        [text], allowed_special=allowed, add_special_tokens=add_special_tokens, max_threads=1
    )
    return ids.astype(dtype)


class _Query:
    """The query parameters of a request, checked one by one."""

    def __init__(self, given: QueryParams, *known: str) -> None:
        self._given = given
        for name in given:
            if name not in known:
                message = (
                    f"{shorten(name)}: there is no such query parameter for this body; there are {', '.join(known)}"
                )
                raise ApiError(422, message)

    def flag(self, name: str) -> bool:
        return self._one_of(name, "false", "true") == "true"

    def names(self, name: str) -> list[str] | Literal["all"]:
        names = self._given.getlist(name)
        return "all" if names == ["all"] else names

    def errors(self) -> Literal["replace", "strict"]:
        return "strict" if self._one_of("errors", "replace", "strict") == "strict" else "replace"

    def dtype(self, tokenizer: Tokenizer) -> np.dtype[Any]:
        """The type of ids: that of token files, unless the client names one."""
        narrow = tokenizer.vocab_size <= 1 << 16
        name = self._one_of("dtype", "uint16" if narrow else "uint32", "uint16", "uint32")
        if name == "uint16" and not narrow:
            message = f"dtype: uint16 holds ids to 65535, this tokenizer's go to {tokenizer.vocab_size - 1}; use uint32"
            raise ApiError(400, message, param="dtype")
        return _DTYPES[name]

    def _one_of(self, name: str, default: str, *others: str) -> str:
        values = self._given.getlist(name) or [default]
        if len(values) == 1 and values[0] in (default, *others):
            return values[0]
        choices = " or ".join(dict.fromkeys((default, *others)))
        raise ApiError(422, f"{name}: must be {choices}, once (got {shorten(', '.join(values))})", param=name)


def _check_charset(content_type: str) -> None:
    message = Message()
    message["content-type"] = content_type
    charset = message.get_content_charset("utf-8")
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise ApiError(415, f"send text as UTF-8 (charset got: {shorten(charset)})")


def _accepts_ids(accept: str) -> bool:
    return any(part.partition(";")[0].strip().lower() == IDS for part in accept.split(","))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
