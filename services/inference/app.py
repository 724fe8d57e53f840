"""The inference service: a language model over HTTP."""

from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI

from services.inference.api.chat_completions import chat_completion_route
from services.inference.api.completions import completion_route
from services.inference.api.generate import generate_route
from services.inference.api.models import add_info_route, add_model_routes
from services.inference.api.service import InferenceService
from services.inference.api.tokenize import detokenize_route, tokenize_route
from services.inference.api.training import add_training_route
from services.inference.generation.loading import ServedModel, load_served_model
from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from shared.http import Lifecycle, add_body_routes, build_app


def create_app(
    settings: InferenceSettings, load: Callable[[InferenceSettings], ServedModel] = load_served_model
) -> FastAPI:
    """Build the app; the model is loaded when the app starts, not now."""
    lifecycle: Lifecycle[ServedModel] = Lifecycle(
        lambda: load(settings),
        start=lambda model: model.engine.start(metrics.queue_seconds.observe),
        drain=lambda model, timeout: model.engine.drain(timeout),
        close=lambda model: model.close(),
        health=lambda model: model.engine.fault,
        load_timeout=settings.load_timeout or None,
    )
    metrics = InferenceMetrics(
        stats=lambda: lifecycle.loaded.engine.stats() if lifecycle.loaded else None,
        worker_pid=lambda: lifecycle.loaded.engine.worker_pid if lifecycle.loaded else None,
        engine_metrics=lambda: lifecycle.loaded.engine.metrics() if lifecycle.loaded else (),
    )
    service = InferenceService(settings, lifecycle, metrics)
    app = build_app(
        settings,
        lifecycle,
        metrics,
        title="ownlm inference",
        description="Continues text with a language model of your own.",
        version=version("ownlm"),
        pages="services.inference.pages",
        refusal=service.refusal,
    )
    add_body_routes(
        app,
        generate_route(service),
        completion_route(service),
        chat_completion_route(service),
        tokenize_route(service),
        detokenize_route(service),
    )
    add_model_routes(app, service)
    add_info_route(app, service)
    add_training_route(app, service)
    return app
