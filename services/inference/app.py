"""The inference service: a language model over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from importlib.metadata import version
from typing import Annotated, Any

import structlog
from fastapi import Depends, FastAPI, Request, Response
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus, SendTimeoutError
from starlette.types import Receive, Scope, Send

from services.inference.answers import Answer
from services.inference.generation import Generation, refusals_as_api_errors
from services.inference.loading import ServedModel, load_served_model
from services.inference.metrics import InferenceMetrics
from services.inference.plan import make_plan
from services.inference.schemas import GenerateRequest, GenerateResponse, InfoResponse
from services.inference.settings import InferenceSettings
from shared.http import CpuWorkers, Lifecycle, build_app, error_responses, unless_disconnected

_log = structlog.get_logger("ownlm.generate")

_ERRORS = error_responses(400, 413, 415, 422, 429, 500, 503)
_STREAM_EXAMPLE = 'data: {"choices":[{"index":0,"text":" upon",...}],...}\n\ndata: [DONE]\n\n'
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    200: {
        "description": "The answer; with `stream` as Server-Sent Events of the same shape, each with what is new",
        "content": {"text/event-stream": {"example": _STREAM_EXAMPLE}},
    },
}
_PING_SECONDS = 15


class _EventStream(EventSourceResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _log.info("gave up a client that reads nothing")


async def _at_the_end() -> AsyncIterator[ExitStack]:
    """What is put on this stack is called when the answer has gone out, or the client has."""
    with ExitStack() as stack:
        yield stack


def create_app(
    settings: InferenceSettings, load: Callable[[InferenceSettings], ServedModel] = load_served_model
) -> FastAPI:
    """Build the app; the model is loaded when the app starts, not now."""
    # Else the library cuts off running streams on SIGTERM, which have `shutdown_timeout` to finish.
    AppStatus.enable_automatic_graceful_drain = False
    lifecycle: Lifecycle[ServedModel] = Lifecycle(
        lambda: load(settings),
        drain=lambda model, timeout: model.engine.drain(timeout),
        close=lambda model: model.engine.close(),
        health=lambda model: model.engine.fault,
    )
    metrics = InferenceMetrics(lambda: lifecycle.loaded.engine.stats() if lifecycle.loaded else None)
    app = build_app(
        settings,
        lifecycle,
        metrics,
        title="ownlm inference",
        description="Continues text with a language model of your own.",
        version=version("ownlm"),
    )
    workers = CpuWorkers(settings.cpu_threads)

    @app.post("/generate", response_model=GenerateResponse, responses=_RESPONSES)
    async def generate(
        body: GenerateRequest, request: Request, at_the_end: Annotated[ExitStack, Depends(_at_the_end)]
    ) -> Response:
        """Continue a prompt. A client that leaves stops its generation."""
        model = lifecycle.resource
        with refusals_as_api_errors():
            model.engine.check_room(min(body.n or 1, settings.max_choices))
        plan = await workers.run(make_plan, body, model, settings)
        generation = Generation(plan, model, metrics)
        at_the_end.callback(generation.cancel)
        answer = Answer(
            generation,
            model=settings.served_name,
            fingerprint=model.tokenizer.fingerprint,
            logprobs=body.logprobs is not None,
        )
        if body.stream:
            return _EventStream(
                answer.frames(), ping=_PING_SECONDS, sep="\n", send_timeout=settings.stream_send_timeout
            )
        whole = await unless_disconnected(request, answer.whole())
        return Response(whole.model_dump_json(), media_type="application/json")

    @app.get("/info", tags=["operations"], responses=error_responses(503))
    async def info() -> InfoResponse:
        """What is being served, and the limits that requests must keep."""
        model = lifecycle.resource
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

    return app
