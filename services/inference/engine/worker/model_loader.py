"""Load the model in the engine process, with the runner for its device.

torch is imported for a GPU only: it takes 200 MB and a second.
"""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from services.inference.engine.ipc import EngineConfig, Ready, model_identity
from services.inference.engine.runner.cpu import kernels as step_kernels
from services.inference.engine.runner.cpu.panels import KINDS, KV_KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.sizes import block_bytes, position_bytes
from services.inference.engine.runner.cpu.step_threads import candidate_thread_counts
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Runner
from services.inference.engine.sampler import CpuSampler
from services.inference.engine.sampler import kernels as sampler_kernels
from services.inference.engine.scheduling.prefill import TokensBeside
from services.inference.engine.types import BLOCK_SIZE
from services.inference.engine.worker.cache_size import CacheError, num_blocks, served_context
from shared.bpe import Tokenizer
from shared.kernels import object_file
from shared.lm import ModelConfig, read_description
from shared.lm.description import valid_tokens
from shared.lm.gpu import gpu_unavailable_reason, has_cuda_driver
from shared.lm.stored_weights import StoredWeights
from shared.system.cpu_count import available_processors
from shared.system.memory import free_memory

_log = structlog.get_logger("ownlm.engine")

# By the weights, for `auto`: never float16, for which the keys of a model may be too large.
_CPU_KV_DTYPES = {"float32": "float32", "float16": "float32", "bfloat16": "bfloat16", "int8": "bfloat16"}
_CUDA_DTYPES = ("float32", "bfloat16", "float16")
# On the CPU a chunk of a prompt delays others by the time of its tokens; on CUDA by that of its tiles (`TorchRunner`).
_CPU_PREFILL_TOKENS, _CUDA_PREFILL_TOKENS = 256, 512
_CPU_MIN_PREFILL_TOKENS = 2 * BLOCK_SIZE  # with one block, eight clients that begin together wait a third longer
# A tile of so many takes hardly longer than one token of each sequence.
_CUDA_MIN_PREFILL_TOKENS = 256


class DeviceError(ValueError):
    """The requested device does not exist, or does not support what was requested."""


@dataclass(frozen=True)
class LoadedModel:
    """A runner, its ready message, and how `EngineCore` uses it.

    Attributes:
        exclude_process: Makes a process avoid the processor of the thread that runs steps; called with its id.
    """

    runner: Runner
    ready: Ready
    prefill_tokens: int
    min_prefill_tokens: int
    tokens_beside: TokensBeside = lambda _: None
    exclude_process: Callable[[int], None] = lambda _: None


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the folder and build its runner.

    Raises:
        ModelFolderError: Names the file and the fault, or a weight that the dtype cannot hold.
        DeviceError: There is no such device, or it does not support the dtype.
        CacheError: Too little memory.
    """
    device = _select_device(config.device)
    try:
        model = _load_on_cpu(config) if device == "cpu" else _load_on_cuda(config, device)
    except MemoryError as error:
        raise CacheError(
            f"not enough memory for the model and the cache of {config.max_batch} sequences, lower OWNLM_MAX_BATCH, "
            f"OWNLM_CONTEXT_LENGTH or OWNLM_KV_CACHE_BYTES ({str(error).partition(chr(10))[0] or 'out of memory'})"
        ) from error
    _trim_heap()
    ready = model.ready
    _log.info(
        "model loaded",
        device=ready.device,
        dtype=ready.dtype,
        kv_dtype=ready.kv_dtype,
        kv_cache_tokens=ready.num_blocks * BLOCK_SIZE,
    )
    return model


def _trim_heap() -> None:
    """Return to the system what weights took until they were packed: glibc keeps it, and has a call for this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _load_on_cpu(config: EngineConfig) -> LoadedModel:
    threads = config.threads or available_processors()
    dtype = _select_dtype(config, "float32", KINDS)
    kv_dtype = _CPU_KV_DTYPES[dtype] if config.kv_dtype == "auto" else config.kv_dtype
    folder = read_description(config.model_dir)
    model = folder.config
    object_file.load_all([step_kernels.__name__, sampler_kernels.__name__])
    prefill_tokens = config.prefill_tokens or _CPU_PREFILL_TOKENS
    with StoredWeights(config.model_dir, model) as stored:
        _log_notes(stored.notes)
        weights = pack_weights(model, stored, KINDS[dtype])
    thread_pool = KernelThreadPool(threads)
    sampler = CpuSampler(
        model.vocab_size,
        config.max_batch,
        valid_tokens=valid_tokens(folder.tokenizer, model),
        num_threads=threads,
        run=thread_pool.run,
    )
    runner = CpuRunner(
        model,
        weights,
        sampler,
        thread_pool,
        num_blocks=num_blocks(
            config,
            model,
            block_bytes(model, KV_KINDS[kv_dtype]),
            free_memory(),
            weight_bytes=sum(array.nbytes for array in weights),
            position_bytes=position_bytes(model, threads, config.max_batch),
        ),
        num_slots=config.max_batch,
        max_step_tokens=config.max_batch + prefill_tokens,
        context_length=served_context(config, model),
        kv_kind=KV_KINDS[kv_dtype],
        thread_counts=[threads] if config.threads else candidate_thread_counts(threads),
    )
    ready = _ready_message(config, folder.tokenizer, model, runner, device="cpu", dtype=dtype, kv_dtype=kv_dtype)
    return LoadedModel(
        runner, ready, prefill_tokens, _CPU_MIN_PREFILL_TOKENS, runner.rows_beside, thread_pool.exclude_process
    )


def _load_on_cuda(config: EngineConfig, device: str) -> LoadedModel:
    import torch

    from services.inference.engine.runner.torch.runner import TorchRunner
    from services.inference.engine.runner.torch.selector import triton_unavailable_reason
    from shared.lm import load_model_folder

    # Graphs are captured, and memory is pinned, on the current device, wherever the model is.
    torch.cuda.set_device(torch.device(device).index or 0)
    dtype = _select_dtype(config, "bfloat16", _CUDA_DTYPES)
    kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
    torch_dtype: torch.dtype = getattr(torch, dtype)
    torch_kv_dtype: torch.dtype = getattr(torch, kv_dtype)
    prefill_tokens = config.prefill_tokens or _CUDA_PREFILL_TOKENS
    try:
        folder = load_model_folder(config.model_dir, device=device, dtype=torch_dtype)
        _log_notes(folder.notes)
        reason = triton_unavailable_reason(folder.model.output_weight.device)
        if reason is not None:
            _log.warning("Triton kernels unavailable, using the slower PyTorch fallback", reason=reason)
        model = folder.config
        channels = 2 * model.num_layers * model.num_kv_heads * model.head_dim
        free, _ = torch.cuda.mem_get_info(device)
        max_step_tokens = config.max_batch + prefill_tokens
        runner = TorchRunner(
            folder.model,
            num_blocks=num_blocks(
                config,
                model,
                channels * BLOCK_SIZE * torch_kv_dtype.itemsize,
                free,
                weight_bytes=model.num_parameters * torch_dtype.itemsize,
                position_bytes=TorchRunner.position_bytes(model, config.max_batch),
            ),
            num_slots=config.max_batch,
            max_length=served_context(config, model),
            max_step_tokens=max_step_tokens,
            kv_dtype=torch_kv_dtype,
            valid_tokens=folder.valid_tokens,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    ready = _ready_message(config, folder.tokenizer, model, runner, device=device, dtype=dtype, kv_dtype=kv_dtype)
    return LoadedModel(runner, ready, prefill_tokens, min_prefill_tokens=_CUDA_MIN_PREFILL_TOKENS)


def _select_device(name: str) -> str:
    """Return the device that `OWNLM_DEVICE` means: "cpu", "cuda" or "cuda:1".

    Raises:
        DeviceError: It does not exist.
    """
    if name == "cpu" or (name == "auto" and not has_cuda_driver()):
        return "cpu"
    import torch

    reason = gpu_unavailable_reason()
    if name == "auto":
        if reason is not None:
            _log.warning("running on the CPU although a GPU driver is present", reason=reason)
        return "cuda" if reason is None else "cpu"
    if reason is not None:
        raise DeviceError(f"OWNLM_DEVICE is {name}, but no GPU can be used ({reason}); try cpu")
    if (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"OWNLM_DEVICE is {name}, but torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return name


def _select_dtype(config: EngineConfig, default: str, supported: Iterable[str]) -> str:
    """Return the dtype of the weights.

    Raises:
        DeviceError: The device does not support it.
    """
    dtype = default if config.dtype == "auto" else config.dtype
    if dtype not in supported:
        raise DeviceError(f"OWNLM_DTYPE is {dtype}, but this device supports only {', '.join(supported)}")
    return dtype


def _log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        _log.warning("model folder", note=note)


def _ready_message(
    config: EngineConfig,
    tokenizer: Tokenizer,
    model: ModelConfig,
    runner: Runner,
    *,
    device: str,
    dtype: str,
    kv_dtype: str,
) -> Ready:
    return Ready(
        identity=model_identity(tokenizer.fingerprint, model),
        device=device,
        dtype=dtype,
        context_length=served_context(config, model),
        num_blocks=runner.num_blocks,
        num_slots=runner.num_slots,
        kv_dtype=kv_dtype,
        num_allocated_blocks=runner.num_blocks if runner.block_memory is None else runner.block_memory.num_ready,
    )
