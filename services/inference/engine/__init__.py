"""The engine: owns the model and runs many requests as rows of one batch, behind an interface of its own."""

from services.inference.engine.client.child_process import LoadError, ModelProcess
from services.inference.engine.client.client import EngineClient
from services.inference.engine.client.request_handle import Job
from services.inference.engine.ipc import EngineConfig, Hello, identity_of
from services.inference.engine.types import (
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
