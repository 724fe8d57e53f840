"""Load the model in the model's process: device, dtype, memory, and the runner that goes with them."""

from dataclasses import dataclass

import structlog

from services.inference.engine.messages import EngineConfig, Hello
from services.inference.engine.step import Runner
from shared.lm import ModelConfig

_log = structlog.get_logger("ownlm.engine")


@dataclass(frozen=True)
class LoadedModel:
    """A runner, and what the other process may know of it."""

    runner: Runner
    hello: Hello


def identity(fingerprint: str, config: ModelConfig) -> str:
    """Tells two models apart whose requests must not be mixed up."""
    return f"{fingerprint} {config}"


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the folder and build its runner.

    Raises:
        ModelFolderError: Names the file and the fault.
        DeviceError: There is no such device.
        CacheError: Too little memory.
    """
    raise NotImplementedError
