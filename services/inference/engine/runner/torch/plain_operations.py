"""The operations of a step in plain torch, for any device: the reference of the kernels, and slow."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor

from services.inference.engine.runner.torch.cache import as_kept
from services.inference.engine.runner.torch.operations import (
    QUERY_ROWS,
    ROWS,
    HeadNorms,
    LayerCache,
    Layout,
    Rotation,
)
from services.inference.engine.types import BLOCK_SIZE

_PARTITION_BLOCKS = 16
"""Blocks that are attended to at once."""


class PlainOperations:
    """See `Operations`."""

    def norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Operations.norm`."""
        return F.rms_norm(x, gain.shape, gain, eps)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """See `Operations.linear`."""
        result = _product(x, weight)
        if bias is not None:
            result = result + bias
        return result if residual is None else result + residual

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Operations.logits`."""
        return _product(x.float(), weight.float())

    def swiglu(self, x: Tensor, gate_up: Tensor) -> Tensor:
        """See `Operations.swiglu`."""
        gate, up = _product(x, gate_up).chunk(2, -1)
        return F.silu(gate) * up

    def rotate_and_write(
        self, qkv: Tensor, cache: LayerCache, layout: Layout, rotation: Rotation, norms: HeadNorms
    ) -> Tensor:
        """See `Operations.rotate_and_write`."""
        keys, values = cache
        num_kv_heads, head_dim = keys.shape[1:]
        heads = qkv.view(len(qkv), -1, head_dim)
        new_queries, new_keys = heads[:, : -2 * num_kv_heads], heads[:, -2 * num_kv_heads : -num_kv_heads]
        new_values = heads[:, -num_kv_heads:]
        cos, sin = (table[layout.positions][:, None] for table in rotation)
        new_queries = _rotate(_norm(new_queries, norms.queries, norms.eps), cos, sin)
        new_keys = _rotate(_norm(new_keys, norms.keys, norms.eps), cos, sin)
        indices = layout.cache_indices.long()
        keys.index_copy_(0, indices, as_kept(new_keys, keys.dtype))
        values.index_copy_(0, indices, as_kept(new_values, values.dtype))
        return new_queries

    def attend(self, queries: Tensor, cache: LayerCache, layout: Layout) -> Tensor:
        """See `Operations.attend`.

        Partition by partition with a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867).
        """
        keys, values = cache
        num_kv_heads, num_groups = keys.shape[1], layout.tables.shape[1]
        group = queries.view(
            num_groups, -1, num_kv_heads, queries.shape[1] // num_kv_heads, queries.shape[2]
        ).transpose(1, 2)
        heads, rows = group.shape[3], max(QUERY_ROWS, group.shape[3])
        # Always as many rows, so that all products have one shape: [num_groups, num_kv_heads, rows, head_dim]
        rowed = _padded(group.float().flatten(2, 3) * queries.shape[-1] ** -0.5, rows)
        positions = layout.positions.view(num_groups, -1).repeat_interleave(heads, 1)
        positions = F.pad(positions, (0, rows - positions.shape[1]))
        peak = rowed.new_full((*rowed.shape[:-1], 1), -torch.inf)
        total, mixed = torch.zeros_like(peak), torch.zeros_like(rowed)
        for first in range(0, len(layout.tables), _PARTITION_BLOCKS):
            blocks = layout.tables[first : first + _PARTITION_BLOCKS].T.long()
            at = torch.arange(blocks.shape[1] * BLOCK_SIZE, device=queries.device)
            indices = blocks.repeat_interleave(BLOCK_SIZE, 1) * BLOCK_SIZE + at % BLOCK_SIZE
            seen = (at + first * BLOCK_SIZE <= positions[:, :, None])[:, None]
            scores = (rowed @ keys[indices].permute(0, 2, 3, 1).float()).where(seen, -torch.inf)
            new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights, scale = (scores - new_peak).exp(), (peak - new_peak).exp()
            # A weight of 0 does not remove NaN of a later token, or that an earlier sequence left in a block.
            part = values[indices].transpose(1, 2).float()
            spoils = part.isfinite().all(-1).logical_not()[:, :, None] & seen
            total = total * scale + weights.where(~spoils, torch.nan).sum(-1, keepdim=True)
            mixed = mixed * scale + weights @ part.where(part.isfinite(), 0)
            peak = new_peak
        result = (mixed / total)[:, :, : group.shape[2] * heads].view(group.shape).transpose(1, 2)
        return result.reshape(len(queries), -1).to(queries.dtype)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` in products of `ROWS` rows, so that a row does not depend on how many there are."""
    parts = F.pad(x, (0, 0, 0, -len(x) % ROWS)).view(-1, ROWS, x.shape[1])
    return torch.cat([F.linear(part, weight) for part in parts])[: len(x)]


def _padded(numbers: Tensor, rows: int) -> Tensor:
    """Pad the last dimension but one, so that all products have one shape."""
    return F.pad(numbers, (0, 0, 0, rows - numbers.shape[-2]))


def _norm(heads: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    return heads if gain is None else F.rms_norm(heads, gain.shape, gain, eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel i with channel i + head_dim / 2 of [T, heads, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
