"""The tokenizer service: text to token ids and back over HTTP."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request, Response

from services.tokenizer import json_answers, raw
from services.tokenizer.raw_schemas import RAW_DECODE, RAW_ENCODE
from services.tokenizer.schemas import DecodeRequest, DecodeResponse, EncodeRequest, EncodeResponse, InfoResponse
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer
from shared.http import (
    CpuWorkers,
    HttpMetrics,
    Lifecycle,
    answer_directly,
    build_app,
    error_responses,
    unless_disconnected,
)

R = TypeVar("R")

_ERRORS = error_responses(400, 413, 415, 422, 503)
# Bodies up to this size are answered on the event loop. A text of this size takes a tenth of a millisecond; the worst
# one, of one letter only, 2 ms.
_DIRECT_BYTES = 1 << 12


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
    workers = CpuWorkers(settings.cpu_threads)
    max_items = settings.max_batch_items

    async def work(connection: Request, answer: Callable[..., R], *arguments: Any) -> R:
        """Answer in a worker thread; a client that leaves while it waits for one is forgotten."""
        return await unless_disconnected(connection, workers.run(answer, lifecycle.resource, *arguments))

    async def encode(request: EncodeRequest, connection: Request) -> Response:
        """Turn text into token ids. Text that spells a special token stays text unless `allowed_special` names it."""
        return _json(await work(connection, json_answers.encode, request, max_items))

    async def encode_raw(connection: Request) -> Response:
        return await work(connection, raw.encode, await connection.body(), connection)

    async def decode(request: DecodeRequest, connection: Request) -> Response:
        """Turn token ids into text: the bytes of all tokens are joined first, then decoded."""
        return _json(await work(connection, json_answers.decode, request, max_items))

    async def decode_raw(connection: Request) -> Response:
        return await work(connection, raw.decode, await connection.body(), connection)

    app.router.add_api_route(
        "/encode",
        encode,
        methods=["POST"],
        response_model=EncodeResponse,
        responses=_ERRORS,
        route_class_override=raw.raw_route(raw.TEXT, encode_raw),
        openapi_extra=RAW_ENCODE,
    )
    app.router.add_api_route(
        "/decode",
        decode,
        methods=["POST"],
        response_model=DecodeResponse,
        responses=_ERRORS,
        route_class_override=raw.raw_route(raw.IDS, decode_raw),
        openapi_extra=RAW_DECODE,
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
            limits={"max_body_bytes": settings.max_body_bytes, "max_batch_items": settings.max_batch_items},
        )

    def encode_directly(body: bytes) -> bytes:
        tokenizer = lifecycle.resource
        if not tokenizer.is_linear:
            raise ValueError("a custom pattern is run in a thread")
        fields = orjson.loads(body)
        # By far the most frequent request, and four times as fast as to validate it.
        if isinstance(fields, dict) and fields.keys() == {"text"} and isinstance(text := fields["text"], str):
            return json_answers.write_ids(tokenizer, tokenizer.encode_to_numpy(text))
        return json_answers.encode(tokenizer, EncodeRequest.model_validate(fields), max_items)

    def decode_directly(body: bytes) -> bytes:
        return json_answers.decode(lifecycle.resource, DecodeRequest.model_validate_json(body), max_items)

    answer_directly(app, {"/encode": encode_directly, "/decode": decode_directly}, max_bytes=_DIRECT_BYTES)
    return app


def _load(settings: TokenizerSettings) -> Tokenizer:
    tokenizer = Tokenizer.from_files(settings.model_dir)
    tokenizer.warm_up()
    return tokenizer


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
