"""The language model: its architecture, its weights, drawing tokens, and the folder that holds all of it."""

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError, ModelFolderError, SamplingError
from shared.lm.folder import ModelFolder, load_model_folder, read_config, save_model_folder, valid_token_mask
from shared.lm.generation import generate
from shared.lm.generation_config import GenerationDefaults
from shared.lm.kv_cache import KVCache
from shared.lm.rope import Llama3Scaling, RopeConfig
from shared.lm.sampling import NO_TOKEN, SampledRow, sample, top_logprobs
from shared.lm.sampling_params import SamplingParams
from shared.lm.transformer import Transformer
from shared.lm.weights import load_weights

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
