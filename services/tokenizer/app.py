"""The tokenizer service: text to token ids and back over HTTP."""

from functools import partial
from importlib.metadata import version

from fastapi import FastAPI

from services.tokenizer.decode import decode_route
from services.tokenizer.encode import encode_route
from services.tokenizer.schemas import InfoResponse
from services.tokenizer.service import TokenizerService
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.vocabulary import prepare_search, token_route, vocabulary_route
from shared.bpe import Tokenizer
from shared.http import HttpMetrics, Lifecycle, add_body_routes, build_app, error_responses


def create_app(settings: TokenizerSettings) -> FastAPI:
    """Build the app; the tokenizer is loaded when the app starts, not now."""
    lifecycle = Lifecycle(partial(_load, settings))
    app = build_app(
        settings,
        lifecycle,
        HttpMetrics(),
        title="ownlm tokenizer",
        description="Byte-level BPE: text to token ids and back.",
        version=version("ownlm"),
        pages="services.tokenizer.pages",
    )
    service = TokenizerService(settings, lifecycle)
    add_body_routes(app, encode_route(service), decode_route(service), vocabulary_route(service), token_route(service))
    _add_info(app, service)
    return app


def _load(settings: TokenizerSettings) -> Tokenizer:
    tokenizer = Tokenizer.from_files(settings.model_dir)
    tokenizer.warm_up()
    prepare_search(tokenizer)
    return tokenizer


def _add_info(app: FastAPI, service: TokenizerService) -> None:
    settings = service.settings

    @app.get("/info", tags=["operations"], responses=error_responses(503))
    async def info() -> InfoResponse:
        """The tokenizer being served, and the limits on requests."""
        tokenizer = service.tokenizer
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
