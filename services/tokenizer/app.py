"""The tokenizer service: text to token ids and back over HTTP."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response

from services.tokenizer import json_answers, raw
from services.tokenizer.raw_schemas import RAW_DECODE, RAW_ENCODE
from services.tokenizer.schemas import DecodeRequest, DecodeResponse, EncodeRequest, EncodeResponse, InfoResponse
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer
from shared.http import (
    BodyRoute,
    HttpMetrics,
    Lifecycle,
    ThreadPool,
    add_body_routes,
    build_app,
    cancel_on_disconnect,
    error_responses,
)

R = TypeVar("R")

_ERRORS = error_responses(400, 413, 415, 422, 503)
# Characters of text or token ids that are worked on on the event loop. A text of this size takes a tenth of a
# millisecond; the worst one, of one letter only, 2 ms.
_INLINE_SIZE = 1 << 12


def create_app(settings: TokenizerSettings) -> FastAPI:
    """Build the app; the tokenizer is loaded when the app starts, not now."""
    lifecycle = Lifecycle(lambda: _load(settings))
    app = build_app(
        settings,
        lifecycle,
        HttpMetrics(),
        title="ownlm tokenizer",
        description="Byte-level BPE: text to token ids and back.",
        version=version("ownlm"),
    )
    workers = ThreadPool(settings.cpu_threads)
    max_items, max_bytes = settings.max_batch_items, settings.max_answer_bytes

    async def work(size: int, connection: Request, answer: Callable[..., R], *arguments: Any) -> R:
        """Answer at once where this takes no time, else in a worker thread until the client leaves."""
        tokenizer = lifecycle.resource
        if size <= _INLINE_SIZE and tokenizer.is_linear:
            return answer(tokenizer, *arguments)
        return await cancel_on_disconnect(connection, workers.run(answer, tokenizer, *arguments))

    async def encode(body: EncodeRequest, request: Request) -> Response:
        """Turn text into token ids. Text that spells a special token stays text unless `allowed_special` names it."""
        return _json(await work(body.size, request, json_answers.encode, body, max_items))

    async def encode_raw(body: bytes, request: Request) -> Response:
        return await work(len(body), request, raw.encode, body, request)

    async def decode(body: DecodeRequest, request: Request) -> Response:
        """Turn token ids into text: the bytes of all tokens are joined first, then decoded."""
        return _json(await work(body.size, request, json_answers.decode, body, max_items, max_bytes))

    async def decode_raw(body: bytes, request: Request) -> Response:
        return await work(len(body), request, raw.decode, body, request, max_bytes)

    add_body_routes(
        app,
        BodyRoute(
            "/encode",
            encode,
            raw={raw.TEXT: encode_raw},
            response_model=EncodeResponse,
            responses=_ERRORS,
            openapi_extra=RAW_ENCODE,
        ),
        BodyRoute(
            "/decode",
            decode,
            raw={raw.IDS: decode_raw},
            response_model=DecodeResponse,
            responses=_ERRORS,
            openapi_extra=RAW_DECODE,
        ),
    )

    @app.get("/info", tags=["operations"], responses=error_responses(503))
    async def info() -> InfoResponse:
        """What is being served, and the limits that requests must keep."""
        tokenizer = lifecycle.resource
        return InfoResponse(
            version=app.version,
            model=settings.served_name,
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            special_tokens=dict(tokenizer.special_tokens),
            limits={
                "max_body_bytes": settings.max_body_bytes,
                "max_batch_items": settings.max_batch_items,
                "max_answer_bytes": settings.max_answer_bytes,
            },
        )

    return app


def _load(settings: TokenizerSettings) -> Tokenizer:
    tokenizer = Tokenizer.from_files(settings.model_dir)
    tokenizer.warm_up()
    return tokenizer


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
