"""A fixed number of tokens through the model, each at any position of any sequence."""

import torch
from torch import Tensor

from services.inference.engine.types import BLOCK_SIZE
from shared.lm import ModelConfig, Transformer
from shared.lm.attention import Attention
from shared.lm.rope import rotate
from shared.lm.transformer import Block

PARTITION_BLOCKS = 16
"""Blocks that are attended to at once, as a partition of vLLM's PagedAttention V2."""

TOKEN, POSITION, CACHE_INDEX, FIRST_BLOCK = 0, 1, 2, 3
"""Columns of a tile's input: id, position, where in the cache it is written, and its sequence's block table."""


class PagedCache:
    """Keys and values in blocks, allocated once: [num_layers, num_blocks, BLOCK_SIZE, num_kv_heads, head_dim] each."""

    def __init__(self, config: ModelConfig, num_blocks: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_layers, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    def copy(self, source: int, target: int) -> None:
        """Copy a block of all layers."""
        self._keys[:, target] = self._keys[:, source]
        self._values[:, target] = self._values[:, source]

    def write(self, layer: int, indices: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [T, num_kv_heads, head_dim] to indices [T], counted through all blocks.

        What float16 cannot hold becomes NaN, as on the CPU: beside an infinite key all others would count as nothing.
        """
        for cache, numbers in ((self._keys, keys), (self._values, values)):
            kept = numbers.to(cache.dtype)
            if cache.dtype is torch.float16:
                kept = kept.where(kept.isfinite(), torch.nan)
            cache[layer].flatten(0, 1).index_copy_(0, indices, kept)

    def read(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Gather blocks [T, N]: keys and values [T, N * BLOCK_SIZE, num_kv_heads, head_dim]."""
        return self._keys[layer][blocks].flatten(1, 2), self._values[layer][blocks].flatten(1, 2)


class Tile:
    """The model on a tile; reads the same input tensor at each call.

    Args:
        model: The Transformer.
        cache: Keys and values of earlier tokens.
        tile_input: int64 [T, FIRST_BLOCK + any].
        num_partitions: Partitions of PARTITION_BLOCKS blocks that tokens attend to.
    """

    def __init__(self, model: Transformer, cache: PagedCache, tile_input: Tensor, num_partitions: int) -> None:
        self._model, self._cache, self._input, self._num_partitions = model.model, cache, tile_input, num_partitions
        self._blocks = [block for block in model.model.layers if isinstance(block, Block)]

    def __call__(self) -> Tensor:
        """Return the final residual stream, [T, d_model]."""
        positions = self._input[:, POSITION]
        if self._model.rotary is None:
            raise ValueError("a model without RoPE cannot be served")
        rotation = self._model.rotary(positions)
        x = self._model.embed_tokens(self._input[:, TOKEN])
        for block in self._blocks:
            x = x + self._attend(block.self_attn, block.input_layernorm(x), rotation)
            x = x + block.mlp(block.post_attention_layernorm(x))
        output: Tensor = self._model.norm(x)
        return output

    def _attend(self, attention: Attention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        queries, keys, values = (
            project(x).view(len(x), -1, attention.head_dim)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if attention.q_norm is not None and attention.k_norm is not None:
            queries, keys = attention.q_norm(queries), attention.k_norm(keys)
        queries, keys = (rotate(heads.transpose(0, 1), *rotation).transpose(0, 1) for heads in (queries, keys))
        self._cache.write(attention.layer, self._input[:, CACHE_INDEX], keys, values)
        grouped = queries.reshape(len(x), keys.shape[1], -1, attention.head_dim) * attention.head_dim**-0.5
        output: Tensor = attention.o_proj(self._mix(attention.layer, grouped).flatten(1).to(x.dtype))
        return output

    def _mix(self, layer: int, queries: Tensor) -> Tensor:
        """Attend with queries [T, num_kv_heads, group, head_dim], and return as much, in float32.

        Partition by partition with a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867).
        """
        peak = queries.new_full((*queries.shape[:-1], 1), -torch.inf, dtype=torch.float32)
        total, mixed = torch.zeros_like(peak), torch.zeros_like(queries, dtype=torch.float32)
        for partition in range(self._num_partitions):
            first = FIRST_BLOCK + partition * PARTITION_BLOCKS
            blocks = self._input[:, first : first + PARTITION_BLOCKS]
            keys, values = (numbers.to(queries.dtype) for numbers in self._cache.read(layer, blocks))
            positions = torch.arange(keys.shape[1], device=keys.device) + partition * PARTITION_BLOCKS * BLOCK_SIZE
            seen = positions <= self._input[:, POSITION, None]
            scores = (queries @ keys.permute(0, 2, 3, 1)).float().where(seen[:, None, None], -torch.inf)
            new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights, scale = (scores - new_peak).exp(), (peak - new_peak).exp()
            # A weight of 0 does not remove NaN that an earlier sequence left in a block.
            values = values.where(seen[..., None, None], 0).transpose(1, 2)
            total = total * scale + weights.sum(-1, keepdim=True)
            mixed = mixed * scale + (weights.to(values.dtype) @ values).float()
            peak = new_peak
        return mixed / total
