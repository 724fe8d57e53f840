"""The inference service: a language model over HTTP."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI, Request, Response

from services.inference.api.answers import GenerateShape, answer
from services.inference.api.completions import add_model_routes, completion_route
from services.inference.api.schemas import GenerateRequest, GenerateResponse, InfoResponse
from services.inference.api.serving import Serving, stream_responses
from services.inference.generation.loading import ServedModel, load_served_model
from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from shared.http import BodyRoute, Lifecycle, add_body_routes, build_app, error_responses

_STREAM_EXAMPLE = (
    'data: {"id":"gen-...","model":"demo","choices":[{"index":0,"text":" upon","tokens":[271],"logprobs":null,'
    '"finish_reason":null,"stop_reason":null}],"usage":null,"seed":1,"fingerprint":"..."}\n\ndata: [DONE]\n\n'
)


def create_app(
    settings: InferenceSettings, load: Callable[[InferenceSettings], ServedModel] = load_served_model
) -> FastAPI:
    """Build the app; the model is loaded when the app starts, not now."""
    lifecycle: Lifecycle[ServedModel] = Lifecycle(
        lambda: load(settings),
        start=lambda model: model.engine.start(metrics.queue_seconds.observe),
        drain=lambda model, timeout: model.engine.drain(timeout),
        close=lambda model: model.engine.close(),
        health=lambda model: model.engine.fault,
    )
    metrics = InferenceMetrics(
        stats=lambda: lifecycle.loaded.engine.stats() if lifecycle.loaded else None,
        model_process=lambda: lifecycle.loaded.process_id() if lifecycle.loaded else None,
    )
    serving = Serving(settings, lifecycle, metrics)
    app = build_app(
        settings,
        lifecycle,
        metrics,
        title="ownlm inference",
        description="Continues text with a language model of your own.",
        version=version("ownlm"),
        refusal=serving.refusal,
    )
    add_body_routes(app, _generate_route(serving), completion_route(serving))
    add_model_routes(app, serving)
    _add_info(app, serving)
    return app


def _generate_route(serving: Serving) -> BodyRoute:
    settings = serving.settings

    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Continue a prompt. A client that leaves stops its generation."""
        generation = await serving.generate(body, settings.default_max_tokens)
        shape = GenerateShape(
            generation.plan,
            serving.model.tokenizer,
            id_=serving.answer_id("gen"),
            model=settings.served_name,
            logprobs=body.logprobs is not None,
        )
        return await answer(
            request, generation, shape, stream=bool(body.stream), send_timeout=settings.stream_send_timeout
        )

    return BodyRoute(
        "/generate", generate, response_model=GenerateResponse, responses=stream_responses(_STREAM_EXAMPLE)
    )


def _add_info(app: FastAPI, serving: Serving) -> None:
    settings = serving.settings

    @app.get("/info", tags=["operations"], responses=error_responses(503))
    async def info() -> InfoResponse:
        """What is being served, and the limits that requests must keep."""
        model = serving.model
        params = model.generation.params(seed=0)
        return InfoResponse(
            version=app.version,
            model=settings.served_name,
            fingerprint=model.tokenizer.fingerprint,
            parameters=model.config.num_parameters,
            vocab_size=model.config.vocab_size,
            context_length=model.context_length,
            device=model.device,
            dtype=model.dtype,
            defaults={
                "max_tokens": settings.default_max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "min_p": params.min_p,
                "repetition_penalty": params.repetition_penalty,
            },
            limits={
                "max_body_bytes": settings.max_body_bytes,
                "max_choices": settings.max_choices,
                "max_batch": settings.max_batch,
                "max_queue": settings.max_queue,
            },
        )
