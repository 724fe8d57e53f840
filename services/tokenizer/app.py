"""The tokenizer service: text to token ids and back over HTTP."""

import base64
from importlib.metadata import version

from fastapi import FastAPI, Response

from services.tokenizer.schemas import DecodeRequest, DecodeResponse, EncodeRequest, EncodeResponse, InfoResponse, Piece
from services.tokenizer.settings import TokenizerSettings
from shared.bpe import Tokenizer, TokenizerError
from shared.http import ApiError, CpuWorkers, HttpMetrics, Lifecycle, build_app, error_responses

_ERRORS = error_responses(400, 413, 415, 422, 503)


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

    @app.post("/encode", response_model=EncodeResponse, response_model_exclude_none=True, responses=_ERRORS)
    async def encode(request: EncodeRequest) -> Response:
        """Turn text into token ids. Text that spells a special token stays text unless `allowed_special` names it."""
        _check_batch("text", request.text, settings.max_batch_items)
        return await workers.run(_encode, lifecycle.resource, request)

    @app.post("/decode", response_model=DecodeResponse, responses=_ERRORS)
    async def decode(request: DecodeRequest) -> Response:
        """Turn token ids into text: the bytes of all tokens are joined first, then decoded."""
        _check_batch("tokens", request.tokens, settings.max_batch_items)
        return await workers.run(_decode, lifecycle.resource, request)

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

    return app


def _load(settings: TokenizerSettings) -> Tokenizer:
    tokenizer = Tokenizer.from_files(settings.model_dir)
    tokenizer.warm_up()
    return tokenizer


def _check_batch(field: str, value: object, limit: int) -> None:
    """Refuse a batch that is too long; a single list of ids is no batch."""
    is_batch = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    if is_batch and isinstance(value, list) and len(value) > limit:
        raise ApiError(400, f"{field}: {len(value)} items, the limit is {limit} (OWNLM_MAX_BATCH_ITEMS)", param=field)


def _encode(tokenizer: Tokenizer, request: EncodeRequest) -> Response:
    """Encode and write the answer; runs in a worker thread, since both take a while for large texts."""
    single = isinstance(request.text, str)
    texts = [request.text] if isinstance(request.text, str) else request.text
    pieces: list[list[Piece]] | None = None
    try:
        if request.return_pieces:
            pieces = [_pieces(tokenizer, text, request) for text in texts]
            tokens = [[piece.id for piece in text_pieces] for text_pieces in pieces]
        else:
            # One thread: how many requests are worked on at once is what OWNLM_CPU_THREADS sets.
            encoded = tokenizer.encode_batch_to_numpy(
                texts,
                allowed_special=request.allowed_special,
                add_special_tokens=request.add_special_tokens,
                max_threads=1,
            )
            tokens = [ids.tolist() for ids in encoded]
    except TokenizerError as error:
        raise ApiError(400, str(error)) from error
    response = EncodeResponse.model_construct(
        tokens=tokens[0] if single else tokens,
        count=sum(map(len, tokens)),
        fingerprint=tokenizer.fingerprint,
        pieces=pieces[0] if pieces and single else pieces,
    )
    return _json(response.model_dump_json(exclude_none=True))


def _pieces(tokenizer: Tokenizer, text: str, request: EncodeRequest) -> list[Piece]:
    found = tokenizer.encode_with_pieces(
        text, allowed_special=request.allowed_special, add_special_tokens=request.add_special_tokens
    )
    return [
        Piece.model_construct(
            id=piece.id,
            bytes=base64.b64encode(piece.bytes).decode(),
            text=piece.bytes.decode("utf-8", errors="replace"),
            start=piece.start,
            end=piece.end,
            special=piece.special,
        )
        for piece in found
    ]


def _decode(tokenizer: Tokenizer, request: DecodeRequest) -> Response:
    """Decode and write the answer; runs in a worker thread."""
    tokens = request.tokens
    if tokens and isinstance(tokens[0], list):
        texts = []
        for index, ids in enumerate(tokens):
            assert isinstance(ids, list)
            texts.append(_decode_one(tokenizer, ids, request, f"tokens[{index}]"))
        text: str | list[str] = texts
    else:
        text = _decode_one(tokenizer, [id_ for id_ in tokens if isinstance(id_, int)], request, "tokens")
    return _json(DecodeResponse(text=text, fingerprint=tokenizer.fingerprint).model_dump_json())


def _decode_one(tokenizer: Tokenizer, ids: list[int], request: DecodeRequest, param: str) -> str:
    try:
        return tokenizer.decode(ids, errors=request.errors, skip_special_tokens=request.skip_special_tokens)
    except TokenizerError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error


def _json(body: str) -> Response:
    return Response(body, media_type="application/json")
