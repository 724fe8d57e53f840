"""The KV cache on the device of the model."""

import torch
from torch import Tensor

from services.inference.engine.types import BLOCK_SIZE
from shared.lm import ModelConfig


class PagedCache:
    """Keys and values in blocks, allocated once.

    Attributes:
        keys: [num_layers, num_blocks * BLOCK_SIZE, num_kv_heads, head_dim].
        values: As `keys`.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_layers, num_blocks * BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def copy(self, source: int, target: int) -> None:
        """Copy a block of all layers."""
        for cache in (self.keys, self.values):
            blocks = cache.view(len(cache), -1, BLOCK_SIZE, *cache.shape[2:])
            blocks[:, target] = blocks[:, source]


def as_kept(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values in the dtype of the cache.

    What float16 cannot hold becomes NaN, as on the CPU: beside an infinite key all others would count as nothing.
    """
    kept = numbers.to(dtype)
    return kept.where(kept.isfinite(), torch.nan) if dtype is torch.float16 else kept
