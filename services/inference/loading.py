"""Load a model folder and put an engine around it."""

from dataclasses import dataclass

import structlog
import torch

from services.inference.engine import BatchingEngine, Engine, ModelRunner
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelConfig, load_model_folder

_log = structlog.get_logger("ownlm.loading")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class DeviceError(ValueError):
    """The device that was asked for is not there."""


class CacheError(ValueError):
    """The memory does not suffice for what is to run at the same time."""


@dataclass(frozen=True)
class ServedModel:
    """What requests need of a loaded model; the engine alone touches its weights."""

    tokenizer: Tokenizer
    generation: GenerationDefaults
    config: ModelConfig
    engine: Engine
    context_length: int
    device: str
    dtype: str


def load_served_model(settings: InferenceSettings) -> ServedModel:
    """Load everything, and start the engine.

    Raises:
        ModelFolderError: Names the file and the fault.
        DeviceError: There is no such device.
        CacheError: Too little memory.
    """
    device = _device(settings.device)
    dtype = _DTYPES.get(settings.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)
    # One core stays with HTTP and tokenizing: threads that wait for a core that others use cost the model most.
    torch.set_num_threads(settings.threads or max(1, torch.get_num_threads() - 1))
    folder = load_model_folder(settings.model_dir, device=device, dtype=dtype)
    folder.tokenizer.warm_up()
    for note in folder.notes:
        _log.warning("model folder", note=note)
    context_length = min(settings.context_length or folder.config.context_length, folder.config.context_length)
    try:
        runner = ModelRunner(
            folder.model, num_slots=settings.max_batch, max_length=context_length, valid_tokens=folder.valid_tokens
        )
        runner.warm_up()
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError where memory runs out
        raise CacheError(
            f"no memory for the caches of {settings.max_batch} sequences of {context_length} tokens, "
            f"lower OWNLM_MAX_BATCH or OWNLM_CONTEXT_LENGTH ({str(error).splitlines()[0]})"
        ) from error
    _log.info(
        "model loaded", parameters=folder.config.num_parameters, cache_bytes=runner.cache_bytes, device=str(device)
    )
    return ServedModel(
        tokenizer=folder.tokenizer,
        generation=folder.generation,
        config=folder.config,
        engine=BatchingEngine(runner, max_queue=settings.max_queue, prefill_tokens=settings.prefill_tokens),
        context_length=context_length,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"OWNLM_DEVICE is {name}, but torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return device
