"""The language model: its architecture, its weights, drawing tokens, and the folder that holds all of it."""

from .config import ModelConfig
from .errors import ModelConfigError, ModelFolderError, SamplingError
from .folder import ModelFolder, load_model_folder, read_config, save_model_folder, valid_token_mask
from .generation import generate
from .generation_config import GenerationDefaults
from .kv_cache import KVCache
from .rope import Llama3Scaling, RopeConfig
from .sampling import NO_TOKEN, SampledRow, SamplingParams, sample, top_logprobs
from .transformer import Transformer
from .weights import load_weights

__all__ = [
    "NO_TOKEN",
    "GenerationDefaults",
    "KVCache",
    "Llama3Scaling",
    "ModelConfig",
    "ModelConfigError",
    "ModelFolder",
    "ModelFolderError",
    "RopeConfig",
    "SampledRow",
    "SamplingError",
    "SamplingParams",
    "Transformer",
    "generate",
    "load_model_folder",
    "load_weights",
    "read_config",
    "sample",
    "save_model_folder",
    "top_logprobs",
    "valid_token_mask",
]
