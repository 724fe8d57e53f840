"""The routes of OpenAI's completions API."""

import time

from fastapi import FastAPI, Request, Response

from services.inference.api.answers import answer
from services.inference.api.completions.schemas import (
    CompletionRequest,
    CompletionResponse,
    ModelCard,
    ModelList,
    StreamOptions,
)
from services.inference.api.completions.shape import CompletionShape
from services.inference.api.serving import Serving, stream_responses
from shared.http import ApiError, BodyRoute, error_responses

_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_STREAM_EXAMPLE = (
    'data: {"id":"cmpl-...","object":"text_completion","created":1,"model":"demo",'
    '"choices":[{"index":0,"text":" upon","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    "data: [DONE]\n\n"
)


def completion_route(serving: Serving) -> BodyRoute:
    """/v1/completions."""
    name = serving.settings.served_name
    send_timeout = serving.settings.stream_send_timeout

    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or several, as OpenAI's clients ask for it."""
        if body.model is not None and body.model != name:
            raise _no_model(body.model, name)
        _refuse_what_cannot_be(body)
        generation = await serving.generate(body, _DEFAULT_MAX_TOKENS)
        shape = CompletionShape(
            generation.plan,
            serving.model.tokenizer,
            id_=serving.answer_id("cmpl"),
            model=name,
            num_logprobs=body.logprobs,
            options=body.stream_options or StreamOptions(),
            usage=generation.usage,
        )
        return await answer(request, generation, shape, stream=bool(body.stream), send_timeout=send_timeout)

    return BodyRoute(
        "/v1/completions",
        create_completion,
        name="completions",
        response_model=CompletionResponse,
        responses=stream_responses(_STREAM_EXAMPLE, 404),
        tags=["OpenAI"],
    )


def add_model_routes(app: FastAPI, serving: Serving) -> None:
    """Give the app /v1/models."""
    created = int(time.time())
    name = serving.settings.served_name

    def card() -> ModelCard:
        return ModelCard(
            id=name, object="model", created=created, owned_by="ownlm", max_model_len=serving.model.context_length
        )

    @app.get("/v1/models", responses=error_responses(503), tags=["OpenAI"])
    async def list_models() -> ModelList:
        """The model that is served."""
        return ModelList(object="list", data=[card()])

    @app.get("/v1/models/{model:path}", responses=error_responses(404, 422, 503), tags=["OpenAI"])
    async def retrieve_model(model: str) -> ModelCard:
        """The model of this name."""
        if model != name:
            raise _no_model(model, name)
        return card()


def _no_model(wanted: str, served: str) -> ApiError:
    message = f"model: there is no {wanted[:200]!r} here, this server has {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def _refuse_what_cannot_be(body: CompletionRequest) -> None:
    if body.suffix is not None:
        raise ApiError(400, "suffix: the model only writes onwards, it cannot fill a gap", param="suffix")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options: only with stream true", param="stream_options")
