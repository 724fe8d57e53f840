"""How many blocks the KV cache gets."""

from services.inference.engine.ipc import EngineConfig
from services.inference.engine.types import BLOCK_SIZE, num_blocks_of
from shared.lm import ModelConfig

_SHARE_OF_FREE_MEMORY = 0.5
# A model of this size has no use for a larger cache: the config.json of a small one may claim a context of millions of
# tokens, which would take half of the machine.
_CACHE_PER_WEIGHTS, _SMALL_CACHE = 64, 1 << 30


class CacheError(ValueError):
    """The memory does not suffice for what may run at the same time, or the model for a context of this length."""


def served_context(config: EngineConfig, model: ModelConfig) -> int:
    """The most tokens of a sequence.

    Raises:
        CacheError: More are asked for than the model can take.
    """
    if config.context_length is not None and config.context_length > model.context_length:
        raise CacheError(
            f"OWNLM_CONTEXT_LENGTH is {config.context_length:,}, and the model takes at most "
            f"{model.context_length:,} tokens: lower it, or unset it"
        )
    return config.context_length or model.context_length


def num_blocks(
    config: EngineConfig, model: ModelConfig, block_bytes: int, free: int, *, weight_bytes: int, position_bytes: int
) -> int:
    """Return how many blocks the KV cache gets.

    Args:
        config: All of its `kv_cache_bytes` are used if set; else as many blocks as `max_batch` full contexts need,
            within a share of the free memory and what suits a model of this size.
        model: The architecture.
        block_bytes: Memory of a block, in all layers.
        free: Bytes that are free once the weights are loaded.
        weight_bytes: Memory of the weights.
        position_bytes: Memory of each position of a full context beside the cache.

    Raises:
        CacheError: Not even one sequence of full length has room.
    """
    context = served_context(config, model)
    full_context = num_blocks_of(context)
    if config.kv_cache_bytes is not None:
        blocks = config.kv_cache_bytes // block_bytes
        if blocks == 0:
            raise CacheError(
                f"OWNLM_KV_CACHE_BYTES is {config.kv_cache_bytes}, but a single block of {BLOCK_SIZE} tokens takes "
                f"{block_bytes}"
            )
        return blocks
    limit = max(_SMALL_CACHE, _CACHE_PER_WEIGHTS * weight_bytes)
    room = min(int(free * _SHARE_OF_FREE_MEMORY), limit)
    needed = full_context * block_bytes + context * position_bytes
    if needed > room:
        raise CacheError(
            f"one sequence of {context} tokens needs {needed >> 20} MiB of KV cache and tables, and {room >> 20} MiB "
            f"are available: half of the free memory, and at most {limit >> 20} MiB for a model of this size; "
            "lower OWNLM_CONTEXT_LENGTH, or set OWNLM_KV_CACHE_BYTES"
        )
    return min(config.max_batch * full_context, (room - context * position_bytes) // block_bytes)
