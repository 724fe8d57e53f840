"""Causal attention by batched products, for training on a CPU."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from shared.lm.kernel_calls import run
from shared.lm.kernels import attention as kernels
from shared.lm.operators import define, differentiate

_BYTES = 2 << 20
"""Of the scores that exist at once."""


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(queries · keys / sqrt(head_dim)) · values, where a token attends to itself and those before it.

    As FlashAttention (Dao et al. 2022, arXiv 2205.14135) it keeps one number for each row of scores, and computes the
    scores again in the backward pass; scores have the precision of the products, and exp and sums are in float32.

    Args:
        queries: [B, num_heads, T, head_dim].
        keys: [B, num_kv_heads, T, head_dim]; consecutive query heads share one key head.
        values: As `keys`.

    Returns:
        [B, T, num_heads * head_dim].
    """
    out: Tensor = _operator(queries, keys, values)[0]
    return out


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    out, log_sums = _shapes(queries, keys, values)
    _, heads, tokens, head_dim = queries.shape
    q, k, v = _by_key_head(queries, keys, values)
    mixed, sums = torch.empty_like(q), torch.empty_like(log_sums)
    for part in _parts(q, tokens):
        shares = torch.bmm(q[part], k[part].transpose(1, 2))
        rows = [x.view(q.shape[:2])[part] for x in (sums, log_sums)]
        run(kernels.causal_shares, shares, tokens, head_dim**-0.5, *rows)
        torch.bmm(shares, v[part], out=mixed[part])
    run(kernels.merge_heads, mixed, sums, heads, tokens, out)
    return out, log_sums


def _shapes(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    windows, heads, tokens, head_dim = queries.shape
    out = queries.new_empty(windows, tokens, heads * head_dim)
    return out, queries.new_empty(windows, heads, tokens, dtype=torch.float32)


def _attend_backward(  # noqa: PLR0917 - an operator of torch has positional arguments
    by_out: Tensor, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, log_sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    _, heads, tokens, head_dim = queries.shape
    q, k, v = _by_key_head(queries, keys, values)
    by_mixed, means = torch.empty_like(q), torch.empty_like(log_sums)
    run(kernels.split_heads, by_out.contiguous(), out, heads, tokens, by_mixed, means)
    by_q, by_k, by_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for part in _parts(q, tokens):
        shares = torch.bmm(q[part], k[part].transpose(1, 2))
        by_scores = torch.bmm(by_mixed[part], v[part].transpose(1, 2))
        rows = [x.view(q.shape[:2])[part] for x in (log_sums, means)]
        run(kernels.causal_shares_backward, shares, by_scores, tokens, head_dim**-0.5, *rows)
        torch.bmm(by_scores, k[part], out=by_q[part])
        torch.bmm(by_scores.transpose(1, 2), q[part], out=by_k[part])
        torch.bmm(shares.transpose(1, 2), by_mixed[part], out=by_v[part])
    return by_q.view(queries.shape), by_k.view(keys.shape), by_v.view(values.shape)


def _by_key_head(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B * num_kv_heads, group * T, head_dim], keys and values [B * num_kv_heads, T, head_dim]."""
    windows, num_kv_heads, _, head_dim = keys.shape
    q = queries.contiguous().view(windows * num_kv_heads, -1, head_dim)
    return q, keys.contiguous().flatten(0, 1), values.contiguous().flatten(0, 1)


def _parts(queries: Tensor, tokens: int) -> Iterator[slice]:
    """The key heads to compute at once: so many that their scores stay in the cache."""
    num_heads, rows, _ = queries.shape
    count = max(1, _BYTES // (rows * tokens * queries.itemsize))
    return (slice(first, first + count) for first in range(0, num_heads, count))


_operator = define(
    "causal_attention", "(Tensor queries, Tensor keys, Tensor values) -> (Tensor, Tensor)", _attend, _shapes
)
_backward_operator = define(
    "causal_attention_backward",
    "(Tensor by_out, Tensor queries, Tensor keys, Tensor values, Tensor out, Tensor log_sums)"
    " -> (Tensor, Tensor, Tensor)",
    _attend_backward,
    lambda _by_out, q, k, v, _out, _log_sums: tuple(x.new_empty(x.shape) for x in (q, k, v)),
)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, *output)


differentiate(_operator, lambda ctx, by_out, _: _backward_operator(by_out, *ctx.saved_tensors), _save)
