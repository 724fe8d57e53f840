"""The engine: owns the model and runs many requests as rows of one batch, behind an interface of its own."""

from services.inference.engine.batching import BatchingEngine
from services.inference.engine.job import Job
from services.inference.engine.request import (
    Engine,
    EngineError,
    EngineRestartedError,
    EngineStats,
    EngineUnavailableError,
    Fault,
    FinishReason,
    PromptEvent,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
    RowEvent,
    RowRequest,
    StartEvent,
    TokenEvent,
    TokenLogprobs,
)
from services.inference.engine.runner import ModelRunner

__all__ = [
    "BatchingEngine",
    "Engine",
    "EngineError",
    "EngineRestartedError",
    "EngineStats",
    "EngineUnavailableError",
    "Fault",
    "FinishReason",
    "Job",
    "ModelRunner",
    "PromptEvent",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "RowEvent",
    "RowRequest",
    "StartEvent",
    "TokenEvent",
    "TokenLogprobs",
]
