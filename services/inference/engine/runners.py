"""Load the model in the model's process: device, dtype, memory, and the runner that goes with them."""

from dataclasses import dataclass

import structlog
import torch

from services.inference.engine.cpu.kernels.intrinsics import LANES
from services.inference.engine.cpu.kernels.linear import FLOAT32
from services.inference.engine.cpu.runner import CpuRunner
from services.inference.engine.cpu.team import ThreadTeam
from services.inference.engine.cpu.weights import pack_weights, round_up
from services.inference.engine.limits import blocks_needed
from services.inference.engine.messages import EngineConfig, Hello
from services.inference.engine.sampler import CpuSampler
from services.inference.engine.step import BLOCK_SIZE, Runner
from shared.bpe.processors import available_processors
from shared.lm import ModelConfig, load_model_folder
from shared.lm.free_memory import free_memory

_log = structlog.get_logger("ownlm.engine")

_CPU_KINDS = {"float32": FLOAT32}
_SHARE_OF_FREE_MEMORY = 0.5


class DeviceError(ValueError):
    """The device that was asked for is not there, or cannot do what was asked of it."""


class CacheError(ValueError):
    """The memory does not suffice for what is to run at the same time."""


@dataclass(frozen=True)
class LoadedModel:
    """A runner, and what the HTTP process may know of it."""

    runner: Runner
    hello: Hello


def identity(fingerprint: str, model: ModelConfig) -> str:
    """Tells two models apart whose requests must not be mixed up."""
    return f"{fingerprint} {model}"


def served_context(config: EngineConfig, model: ModelConfig) -> int:
    """The most tokens of a row."""
    return min(config.context_length or model.context_length, model.context_length)


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the folder and build its runner.

    Raises:
        ModelFolderError: Names the file and the fault.
        DeviceError: There is no such device.
        CacheError: Too little memory.
    """
    if _device(config.device) != "cpu":
        raise DeviceError("there is no runner for CUDA in this version; set OWNLM_DEVICE=cpu")
    try:
        model = _on_cpu(config)
    except MemoryError as error:
        raise CacheError(
            f"no memory for the model and the cache of {config.max_batch} sequences, lower OWNLM_MAX_BATCH, "
            f"OWNLM_CONTEXT_LENGTH or OWNLM_KV_CACHE_BYTES ({str(error).splitlines()[0]})"
        ) from error
    _log.info("model loaded", **model.hello._asdict())
    return model


def _on_cpu(config: EngineConfig) -> LoadedModel:
    threads = config.threads or available_processors()
    torch.set_num_threads(threads)
    folder = load_model_folder(config.model_dir, dtype=torch.float32)
    for note in folder.notes:
        _log.warning("model folder", note=note)
    model = folder.config
    dtype = "float32" if config.dtype == "auto" else config.dtype
    if dtype not in _CPU_KINDS:
        raise DeviceError(f"OWNLM_DTYPE is {dtype}, and on cpu there are {', '.join(_CPU_KINDS)}")
    context_length = served_context(config, model)
    weights = pack_weights(model, folder.model.state_dict(), context_length, _CPU_KINDS[dtype])
    team = ThreadTeam(threads)
    sampler = CpuSampler(
        model.vocab_size,
        config.max_batch,
        valid_tokens=folder.valid_tokens.numpy(),
        num_threads=threads,
        run=team.run,
    )
    runner = CpuRunner(
        model,
        weights,
        sampler,
        team,
        num_blocks=num_blocks(config, model, cpu_block_bytes(model), free_memory()),
        max_rows=config.max_batch,
        max_step_tokens=config.max_batch + config.prefill_tokens,
        context_length=context_length,
    )
    hello = Hello(
        identity=identity(folder.tokenizer.fingerprint, model),
        device="cpu",
        dtype=dtype,
        context_length=context_length,
        num_blocks=runner.num_blocks,
        max_rows=runner.max_rows,
    )
    return LoadedModel(runner, hello)


def cpu_block_bytes(model: ModelConfig) -> int:
    """What a block of the KV cache takes on the CPU, in all layers: see `cpu.runner`."""
    channels = model.head_dim + round_up(model.head_dim, LANES)
    return model.num_layers * model.num_kv_heads * channels * BLOCK_SIZE * 4


def num_blocks(config: EngineConfig, model: ModelConfig, block_bytes: int, free: int) -> int:
    """How many blocks the KV cache gets.

    Args:
        config: Its `kv_cache_bytes` are all used where they are given; else as many blocks as `max_batch` full contexts
            need, within a share of what is free.
        model: The architecture.
        block_bytes: What a block takes, in all layers.
        free: Bytes that are free once the weights are loaded.

    Raises:
        CacheError: Not even one row of full length has room.
    """
    full_context = blocks_needed(served_context(config, model), 0)
    if config.kv_cache_bytes is not None:
        blocks = config.kv_cache_bytes // block_bytes
        if blocks == 0:
            raise CacheError(
                f"OWNLM_KV_CACHE_BYTES is {config.kv_cache_bytes}, and {BLOCK_SIZE} tokens alone take {block_bytes}"
            )
        return blocks
    room = int(free * _SHARE_OF_FREE_MEMORY) // block_bytes
    if room < full_context:
        raise CacheError(
            f"the KV cache of one sequence of {served_context(config, model)} tokens takes "
            f"{full_context * block_bytes >> 20} MiB, and half of the free memory is {room * block_bytes >> 20} MiB; "
            "lower OWNLM_CONTEXT_LENGTH, or set OWNLM_KV_CACHE_BYTES"
        )
    return min(config.max_batch * full_context, room)


def _device(name: str) -> str:
    if name == "cpu":
        return "cpu"
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise DeviceError(f"OWNLM_DEVICE is {name}, but torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return name
