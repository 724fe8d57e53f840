"""Load the model in the model's process: device, dtype, memory, and the runner that goes with them.

torch is imported for a GPU only: it takes 200 MB and a second.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from services.inference.engine.ipc import EngineConfig, Hello, identity_of
from services.inference.engine.limits import blocks_needed
from services.inference.engine.runner.cpu.panels import KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner, block_bytes, position_bytes
from services.inference.engine.runner.cpu.team import ThreadTeam
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import BLOCK_SIZE, Runner
from services.inference.engine.sampler import CpuSampler
from shared.bpe import Tokenizer
from shared.lm import ModelConfig, read_description
from shared.lm.description import valid_tokens
from shared.lm.gpu import has_cuda_driver, why_no_gpu
from shared.lm.stored_weights import StoredWeights
from shared.system.cpu_count import available_processors
from shared.system.memory import free_memory

_log = structlog.get_logger("ownlm.engine")

_CUDA_DTYPES = ("float32", "bfloat16", "float16")
_SHARE_OF_FREE_MEMORY = 0.5
# A model of this size has no use for a larger cache: the config.json of a small one may claim a context of millions of
# tokens, which would take half of the machine.
_CACHE_PER_WEIGHTS, _SMALL_CACHE = 64, 1 << 30
# On the CPU a chunk of a prompt delays others by the time of its tokens; on CUDA by that of its tiles (`TorchRunner`).
_CPU_PREFILL_TOKENS, _CUDA_PREFILL_TOKENS = 128, 512
_CPU_MIN_PREFILL_TOKENS = 2 * BLOCK_SIZE  # with one block, eight clients that begin together wait a third longer
_CUDA_TILE_TOKENS = 64


class DeviceError(ValueError):
    """The device that was asked for is not there, or cannot do what was asked of it."""


class CacheError(ValueError):
    """The memory does not suffice for what is to run at the same time."""


@dataclass(frozen=True)
class LoadedModel:
    """A runner, what the HTTP process may know of it, and how `EngineCore` is to use it."""

    runner: Runner
    hello: Hello
    prefill_tokens: int
    min_prefill_tokens: int


def served_context(config: EngineConfig, model: ModelConfig) -> int:
    """The most tokens of a row."""
    return min(config.context_length or model.context_length, model.context_length)


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the folder and build its runner.

    Raises:
        ModelFolderError: Names the file and the fault, or a weight that the dtype cannot hold.
        DeviceError: There is no such device, or it has no weights of this dtype.
        CacheError: Too little memory.
    """
    device = _device(config.device)
    try:
        model = _on_cpu(config) if device == "cpu" else _on_cuda(config, device)
    except MemoryError as error:
        raise CacheError(
            f"no memory for the model and the cache of {config.max_batch} sequences, lower OWNLM_MAX_BATCH, "
            f"OWNLM_CONTEXT_LENGTH or OWNLM_KV_CACHE_BYTES ({str(error).partition(chr(10))[0] or 'out of memory'})"
        ) from error
    _give_back_memory()
    hello = model.hello
    _log.info("model loaded", device=hello.device, dtype=hello.dtype, kv_cache_tokens=hello.num_blocks * BLOCK_SIZE)
    return model


def _give_back_memory() -> None:
    """Let the system have what weights took until they were packed: glibc keeps it, and has a call for this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _on_cpu(config: EngineConfig) -> LoadedModel:
    threads = config.threads or available_processors()
    dtype = _dtype(config, "float32", KINDS)
    folder = read_description(config.model_dir)
    model = folder.config
    context_length = served_context(config, model)
    prefill_tokens = config.prefill_tokens or _CPU_PREFILL_TOKENS
    with StoredWeights(config.model_dir, model) as stored:
        _log_notes(stored.notes)
        weights = pack_weights(model, stored, KINDS[dtype])
    team = ThreadTeam(threads)
    sampler = CpuSampler(
        model.vocab_size,
        config.max_batch,
        valid_tokens=valid_tokens(folder.tokenizer, model),
        num_threads=threads,
        run=team.run,
    )
    runner = CpuRunner(
        model,
        weights,
        sampler,
        team,
        num_blocks=num_blocks(
            config,
            model,
            block_bytes(model),
            free_memory(),
            weight_bytes=sum(array.nbytes for array in weights),
            position_bytes=position_bytes(model, threads, config.max_batch),
        ),
        max_rows=config.max_batch,
        max_step_tokens=config.max_batch + prefill_tokens,
        context_length=context_length,
        # The last core is HTTP's, until a step is long enough for the work to pay.
        short_step_threads=config.threads or max(1, threads - 1),
    )
    hello = _hello(config, folder.tokenizer, model, runner, device="cpu", dtype=dtype)
    return LoadedModel(runner, hello, prefill_tokens, min_prefill_tokens=_CPU_MIN_PREFILL_TOKENS)


def _on_cuda(config: EngineConfig, device: str) -> LoadedModel:
    import torch

    from services.inference.engine.runner.torch.runner import TorchRunner
    from shared.lm import load_model_folder

    # Graphs are captured, and memory is pinned, on the current device, wherever the model is.
    torch.cuda.set_device(torch.device(device).index or 0)
    dtype = _dtype(config, "bfloat16", _CUDA_DTYPES)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    prefill_tokens = config.prefill_tokens or _CUDA_PREFILL_TOKENS
    try:
        folder = load_model_folder(config.model_dir, device=device, dtype=torch_dtype)
        _log_notes(folder.notes)
        model = folder.config
        channels = 2 * model.num_layers * model.num_kv_heads * model.head_dim
        free, _ = torch.cuda.mem_get_info(device)
        max_step_tokens = config.max_batch + prefill_tokens
        runner = TorchRunner(
            folder.model,
            num_blocks=num_blocks(
                config,
                model,
                channels * BLOCK_SIZE * torch_dtype.itemsize,
                free,
                weight_bytes=model.num_parameters * torch_dtype.itemsize,
                position_bytes=8 * max_step_tokens // BLOCK_SIZE,  # of block tables
            ),
            max_rows=config.max_batch,
            max_length=served_context(config, model),
            max_step_tokens=max_step_tokens,
            valid_tokens=folder.valid_tokens,
        )
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    hello = _hello(config, folder.tokenizer, model, runner, device=device, dtype=dtype)
    return LoadedModel(runner, hello, prefill_tokens, min_prefill_tokens=_CUDA_TILE_TOKENS)


def _log_notes(notes: Iterable[str]) -> None:
    for note in notes:
        _log.warning("model folder", note=note)


def _hello(
    config: EngineConfig, tokenizer: Tokenizer, model: ModelConfig, runner: Runner, *, device: str, dtype: str
) -> Hello:
    return Hello(
        identity=identity_of(tokenizer.fingerprint, model),
        device=device,
        dtype=dtype,
        context_length=served_context(config, model),
        num_blocks=runner.num_blocks,
        max_rows=runner.max_rows,
    )


def _dtype(config: EngineConfig, usual: str, possible: Iterable[str]) -> str:
    dtype = usual if config.dtype == "auto" else config.dtype
    if dtype not in possible:
        raise DeviceError(f"OWNLM_DTYPE is {dtype}, but on this device there is only {', '.join(possible)}")
    return dtype


def num_blocks(
    config: EngineConfig, model: ModelConfig, block_bytes: int, free: int, *, weight_bytes: int, position_bytes: int
) -> int:
    """How many blocks the KV cache gets.

    Args:
        config: Its `kv_cache_bytes` are all used where they are given; else as many blocks as `max_batch` full contexts
            need, within a share of what is free and what suits a model of this size.
        model: The architecture.
        block_bytes: What a block takes, in all layers.
        free: Bytes that are free once the weights are loaded.
        weight_bytes: Memory of the weights.
        position_bytes: What each position of a full context takes beside the cache.

    Raises:
        CacheError: Not even one row of full length has room.
    """
    context = served_context(config, model)
    full_context = blocks_needed(context, 0)
    if config.kv_cache_bytes is not None:
        blocks = config.kv_cache_bytes // block_bytes
        if blocks == 0:
            raise CacheError(
                f"OWNLM_KV_CACHE_BYTES is {config.kv_cache_bytes}, and {BLOCK_SIZE} tokens alone take {block_bytes}"
            )
        return blocks
    most = max(_SMALL_CACHE, _CACHE_PER_WEIGHTS * weight_bytes)
    room = min(int(free * _SHARE_OF_FREE_MEMORY), most)
    needed = full_context * block_bytes + context * position_bytes
    if needed > room:
        raise CacheError(
            f"one sequence of {context} tokens takes {needed >> 20} MiB of KV cache and tables, and there are "
            f"{room >> 20}: half of the free memory, and {most >> 20} MiB at most for a model of this size; "
            "lower OWNLM_CONTEXT_LENGTH, or set OWNLM_KV_CACHE_BYTES"
        )
    return min(config.max_batch * full_context, (room - context * position_bytes) // block_bytes)


def _device(name: str) -> str:
    """The device that is meant: "cpu", "cuda" or "cuda:1".

    Raises:
        DeviceError: It is not there.
    """
    if name == "cpu" or (name == "auto" and not has_cuda_driver()):
        return "cpu"
    import torch

    reason = why_no_gpu()
    if name == "auto":
        if reason is not None:
            _log.warning("the model runs on the CPU, though there is a GPU's driver", reason=reason)
        return "cuda" if reason is None else "cpu"
    if reason is not None:
        raise DeviceError(f"OWNLM_DEVICE is {name}, but no GPU can be used ({reason}); try cpu")
    if (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"OWNLM_DEVICE is {name}, but torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return name
