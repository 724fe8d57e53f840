"""The engine: owns the model and runs the sequences of many requests in one batch."""

from services.inference.engine.client.child_process import ModelProcess
from services.inference.engine.client.client import EngineClient
from services.inference.engine.errors import (
    EngineError,
    EngineRestartedError,
    EngineUnavailableError,
    LoadError,
    QueueFullError,
    QueueTimeoutError,
    RequestTimeoutError,
    RequestTooLargeError,
    UnsupportedFieldError,
)
from services.inference.engine.ipc import EngineConfig, Ready, model_identity
from services.inference.engine.protocol import Engine
from services.inference.engine.request_handle import RequestHandle
from services.inference.engine.types import (
    MAX_LOGPROBS,
    EngineFeatures,
    EngineStats,
    Fault,
    FinishReason,
    PromptEvent,
    SequenceEvent,
    SequenceRequest,
    TokenEvent,
    TokenLogprobs,
)

__all__ = [
    "MAX_LOGPROBS",
    "Engine",
    "EngineClient",
    "EngineConfig",
    "EngineError",
    "EngineFeatures",
    "EngineRestartedError",
    "EngineStats",
    "EngineUnavailableError",
    "Fault",
    "FinishReason",
    "LoadError",
    "ModelProcess",
    "PromptEvent",
    "QueueFullError",
    "QueueTimeoutError",
    "Ready",
    "RequestHandle",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "SequenceEvent",
    "SequenceRequest",
    "TokenEvent",
    "TokenLogprobs",
    "UnsupportedFieldError",
    "model_identity",
]
