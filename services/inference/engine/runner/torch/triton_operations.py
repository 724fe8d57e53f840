"""The operations of a step by the kernels of `kernels`, as operators of torch: each is one launch, `attend` two."""

from typing import Any

import torch
from torch import Tensor

from services.inference.engine.runner.torch.operations import (
    QUERY_ROWS,
    ROWS,
    HeadNorms,
    LayerCache,
    Layout,
    Rotation,
    padded,
)
from services.inference.engine.types import BLOCK_SIZE

_SPLITS = 8
"""Programs that share the positions of a token: chunk i goes to program i modulo this."""

_CHUNKS = {torch.float32: 32}
"""Positions that attention looks at at once: 64, but 32 in float32, for which a GPU has too few registers."""

_MANY_COLUMNS = 4096
"""Columns from which products take more of them at once: there are enough programs for all of a GPU."""


class TritonOperations:
    """See `Operations`."""

    def norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Operations.norm`."""
        result: Tensor = _norm(x, gain, eps)
        return result

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """See `Operations.linear`."""
        result: Tensor = _linear(x, weight, bias, residual, x.dtype, is_gated=False)
        return result

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Operations.logits`."""
        result: Tensor = _linear(x, weight, None, None, torch.float32, is_gated=False)
        return result

    def swiglu(self, x: Tensor, gate_up: Tensor) -> Tensor:
        """See `Operations.swiglu`."""
        result: Tensor = _linear(x, gate_up, None, None, x.dtype, is_gated=True)
        return result

    def rotate_and_write(
        self, qkv: Tensor, cache: LayerCache, layout: Layout, rotation: Rotation, norms: HeadNorms
    ) -> Tensor:
        """See `Operations.rotate_and_write`."""
        places = (layout.positions, layout.cache_indices)
        queries: Tensor = _rotate_and_write(qkv, *cache, *places, *rotation, *norms)
        return queries

    def attend(self, queries: Tensor, cache: LayerCache, layout: Layout) -> Tensor:
        """See `Operations.attend`."""
        result: Tensor = _attend(queries, *cache, layout.positions, layout.tables)
        return result


@torch.library.custom_op("ownlm::norm", mutates_args=())
def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    from services.inference.engine.runner.torch import kernels

    out = torch.empty_like(x)
    kernels.norm[(len(x),)](x, gain, out, eps, x.shape[1], padded(x.shape[1]), num_warps=4)
    return out


@_norm.register_fake
def _(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("ownlm::linear", mutates_args=())
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype, *, is_gated: bool
) -> Tensor:
    from services.inference.engine.runner.torch import kernels

    width = len(weight) // (1 + is_gated)
    out = x.new_empty(len(x), width, dtype=dtype)
    columns = 64 if width >= _MANY_COLUMNS else 32
    block = 32 if x.dtype is torch.float32 else 64
    grid = (-(-width // columns), -(-len(x) // ROWS))
    kernels.linear[grid](
        x, weight, x if bias is None else bias, x if residual is None else residual, out, len(x), x.shape[1], width,
        bias is not None, residual is not None, is_gated, ROWS, columns, block, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@_linear.register_fake
def _(x: Tensor, weight: Tensor, *others: Any, is_gated: bool) -> Tensor:
    return x.new_empty(len(x), len(weight) // (1 + is_gated), dtype=others[-1])


@torch.library.custom_op("ownlm::rotate_and_write", mutates_args=("keys", "values"))
def _rotate_and_write(  # noqa: PLR0917 - an operator takes no tuples
    qkv: Tensor, keys: Tensor, values: Tensor, positions: Tensor, cache_indices: Tensor, cos: Tensor, sin: Tensor,
    query_gain: Tensor | None, key_gain: Tensor | None, eps: float,
) -> Tensor:  # fmt: skip
    from services.inference.engine.runner.torch import kernels

    num_kv_heads, head_dim = keys.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    queries = qkv.new_empty(len(qkv), num_heads, head_dim)
    kernels.rotate_and_write[len(qkv), num_heads + 2 * num_kv_heads](
        qkv, queries, keys, values, positions, cache_indices, cos, sin,
        qkv if query_gain is None else query_gain, qkv if key_gain is None else key_gain, eps,
        num_heads, num_kv_heads, head_dim, padded(head_dim // 2), query_gain is not None, num_warps=1,
    )  # fmt: skip
    return queries


@_rotate_and_write.register_fake
def _(qkv: Tensor, keys: Tensor, *_: object) -> Tensor:
    num_kv_heads, head_dim = keys.shape[1:]
    return qkv.new_empty(len(qkv), qkv.shape[1] // head_dim - 2 * num_kv_heads, head_dim)


@torch.library.custom_op("ownlm::attend", mutates_args=())
def _attend(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, tables: Tensor) -> Tensor:
    from services.inference.engine.runner.torch import kernels

    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads, num_groups = keys.shape[1], tables.shape[1]
    members, dim = padded(num_heads // num_kv_heads), max(16, padded(head_dim))
    mixed = queries.new_empty(num_tokens, num_heads, _SPLITS, head_dim, dtype=torch.float32)
    peaks, totals = mixed.new_empty(2, num_tokens, num_heads, _SPLITS)
    kernels.attend[num_groups, num_kv_heads, _SPLITS](
        queries, keys, values, positions, tables, mixed, peaks, totals, num_tokens // num_groups, num_groups,
        head_dim**-0.5, num_heads, num_kv_heads, members, max(QUERY_ROWS, members), head_dim, dim,
        _CHUNKS.get(queries.dtype, 64), BLOCK_SIZE, _SPLITS, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = queries.new_empty(num_tokens, num_heads * head_dim)
    kernels.combine[(num_tokens * num_heads,)](mixed, peaks, totals, out, head_dim, dim, _SPLITS, num_warps=1)
    return out


@_attend.register_fake
def _(queries: Tensor, *_: Tensor) -> Tensor:
    return queries.new_empty(len(queries), queries.shape[1] * queries.shape[2])
