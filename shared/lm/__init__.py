"""The language model: architecture, weights, sampling, and the model folder.

This is the public interface. What needs torch is imported on first use, since the HTTP process does without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shared.lm.config import ModelConfig
from shared.lm.description import ModelDescription, read_config, read_description
from shared.lm.errors import ModelConfigError, ModelFolderError, SamplingError
from shared.lm.generation_config import GenerationDefaults
from shared.lm.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from shared.lm.sampling_params import NO_TOKEN, SamplingParams

if TYPE_CHECKING:
    from shared.lm.folder import ModelFolder, load_model_folder, save_model_folder, valid_token_mask
    from shared.lm.generation import generate
    from shared.lm.kv_cache import KVCache
    from shared.lm.sampling import SampledRow, sample, top_logprobs
    from shared.lm.transformer import Transformer
    from shared.lm.weights import load_weights

_NEED_TORCH = {
    "KVCache": "shared.lm.kv_cache",
    "ModelFolder": "shared.lm.folder",
    "SampledRow": "shared.lm.sampling",
    "Transformer": "shared.lm.transformer",
    "generate": "shared.lm.generation",
    "load_model_folder": "shared.lm.folder",
    "load_weights": "shared.lm.weights",
    "sample": "shared.lm.sampling",
    "save_model_folder": "shared.lm.folder",
    "top_logprobs": "shared.lm.sampling",
    "valid_token_mask": "shared.lm.folder",
}

__all__ = [
    "NO_TOKEN",
    "GenerationDefaults",
    "KVCache",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "ModelConfigError",
    "ModelDescription",
    "ModelFolder",
    "ModelFolderError",
    "RopeConfig",
    "SampledRow",
    "SamplingError",
    "SamplingParams",
    "Transformer",
    "YarnScaling",
    "generate",
    "load_model_folder",
    "load_weights",
    "read_config",
    "read_description",
    "sample",
    "save_model_folder",
    "top_logprobs",
    "valid_token_mask",
]


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_NEED_TORCH[name]), name)
    return value
