"""The engine: owns the model and runs many requests as rows of one batch, behind an interface of its own."""

from services.inference.engine.client import EngineClient
from services.inference.engine.job import Job
from services.inference.engine.messages import EngineConfig, Hello, identity_of
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
from services.inference.engine.spawn import LoadError, ModelProcess

__all__ = [
    "Engine",
    "EngineClient",
    "EngineConfig",
    "EngineError",
    "EngineRestartedError",
    "EngineStats",
    "EngineUnavailableError",
    "Fault",
    "FinishReason",
    "Hello",
    "Job",
    "LoadError",
    "ModelProcess",
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
    "identity_of",
]
