"""`GET /info` and `GET /v1/models`: the model that is served."""

import time
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from services.inference.api.service import InferenceService
from services.inference.description import Architecture, Origin
from services.inference.generation.request import MAX_STOP_CHARACTERS, MAX_STOPS, number_ranges
from shared.http import ApiError, error_responses


class EngineInfo(BaseModel):
    """The engine that runs the model, and where it differs from this API."""

    name: Literal["ownlm", "vllm"]
    version: str | None
    bitwise_isolation: bool = Field(description="An answer is the same to the bit alone and beside any others")
    refused: dict[str, str] = Field(description="Fields that are refused, always or for some values, and why")
    differences: list[str] = Field(description="Other differences from this API, a sentence each")


class InfoResponse(BaseModel):
    """The model that is served, and its limits."""

    service: Literal["inference"] = "inference"
    version: str
    model: str
    fingerprint: str
    parameters: int
    vocab_size: int
    context_length: int
    device: str
    dtype: str
    kv_dtype: str = Field(description="Of keys and values in the KV cache")
    engine: EngineInfo
    architecture: Architecture
    origin: Origin
    no_training_record: str | None = Field(description="Why /training has nothing; null where it has the record")
    defaults: dict[str, float | int]
    ranges: dict[str, dict[str, float | int]] = Field(
        description="The values that numbers in a request may have: `minimum`, `exclusiveMinimum` and `maximum`"
    )
    limits: dict[str, int]
    special_tokens: dict[str, int]
    eos_token_ids: list[int] = Field(description="Tokens that end an answer, unless a request has ignore_eos")


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int = Field(description="When this server started, in seconds since 1970")
    owned_by: str
    max_model_len: int = Field(description="The most tokens of prompt and generated text together")
    endpoints: list[str] = Field(description="Conversations need a chat template, so not every model has theirs")


class ModelList(BaseModel):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[ModelCard]


def add_info_route(app: FastAPI, service: InferenceService) -> None:
    """Add /info."""
    settings = service.settings

    @app.get("/info", tags=["operations"], responses=error_responses(503))
    async def info() -> InfoResponse:
        """The model being served, and the limits on requests."""
        model = service.model
        params = model.defaults.params(seed=0)
        return InfoResponse(
            version=app.version,
            model=settings.served_name,
            fingerprint=model.tokenizer.fingerprint,
            parameters=model.config.num_parameters,
            vocab_size=model.config.vocab_size,
            context_length=model.context_length,
            device=model.device,
            dtype=model.dtype,
            kv_dtype=model.kv_dtype,
            engine=EngineInfo.model_validate(model.features._asdict()),
            architecture=Architecture.of(model.config),
            origin=model.origin,
            no_training_record=model.training.fault or None,
            defaults={
                "max_tokens": settings.default_max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "min_p": params.min_p,
                "repetition_penalty": params.repetition_penalty,
                "presence_penalty": params.presence_penalty,
                "frequency_penalty": params.frequency_penalty,
            },
            ranges=number_ranges()
            | {
                "max_tokens": {"minimum": 0, "maximum": model.context_length - 1},
                "n": {"minimum": 1, "maximum": settings.max_choices},
            },
            limits={
                "max_body_bytes": settings.max_body_bytes,
                "max_choices": settings.max_choices,
                "max_batch": settings.max_batch,
                "max_queue": settings.max_queue,
                "max_stops": MAX_STOPS,
                "max_stop_characters": MAX_STOP_CHARACTERS,
            },
            special_tokens=dict(model.tokenizer.special_tokens),
            eos_token_ids=list(model.defaults.eos_token_ids),
        )


def add_model_routes(app: FastAPI, service: InferenceService) -> None:
    """Add /v1/models."""
    created = int(time.time())
    name = service.settings.served_name

    def card() -> ModelCard:
        model = service.model
        return ModelCard(
            id=name,
            object="model",
            created=created,
            owned_by="ownlm",
            max_model_len=model.context_length,
            endpoints=["/generate", "/v1/completions", *(["/v1/chat/completions"] if model.chat else [])],
        )

    @app.get("/v1/models", responses=error_responses(503), tags=["OpenAI"])
    async def list_models() -> ModelList:
        """The model that is served."""
        return ModelList(object="list", data=[card()])

    @app.get("/v1/models/{model:path}", responses=error_responses(404, 422, 503), tags=["OpenAI"])
    async def retrieve_model(model: str) -> ModelCard:
        """The model of this name."""
        if model != name:
            raise model_not_found(model, name)
        return card()


def check_model(requested: str | None, served: str) -> None:
    """Refuse a request for another model than the one that is served.

    Raises:
        ApiError: 404, with the model that is served.
    """
    if requested is not None and requested != served:
        raise model_not_found(requested, served)


def model_not_found(requested: str, served: str) -> ApiError:
    """A 404 that names the model that is served."""
    message = f"model: {requested[:200]!r} not found, this server serves {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")
