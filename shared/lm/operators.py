"""Operators of torch that the kernels compute, for autograd and torch.compile. `uses_kernels` says where they apply."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shared.lm.kernel_calls import run
from shared.lm.kernels import cross_entropy as loss
from shared.lm.kernels import feed_forward, norm, rope


def define(name: str, schema: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Define an operator of the namespace `ownlm`.

    By its schema, not by `torch.library.custom_op`: what that makes imports the 800 modules of torch.compile when it is
    first called, a second that a program which compiles nothing need not wait for.

    Args:
        name: Its name.
        schema: Of its arguments and results.
        compute: What computes it.
        shapes: Makes results of the same shapes and types without computing them.

    Returns:
        The operator, to be called.
    """
    full = f"ownlm::{name}"
    torch.library.define(full, schema)
    torch.library.impl(full, "CompositeExplicitAutograd", compute)
    torch.library.register_fake(full, shapes)
    return getattr(torch.ops.ownlm, name).default


def differentiate(operator: Any, backward: Callable[..., Any], save: Callable[..., Any]) -> None:
    """Say how an operator from `define` is differentiated, as `torch.library.register_autograd` does."""
    torch.library.register_autograd(operator, backward, setup_context=save)


# RMS norm


def _norm(x: Tensor, gain: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    y, inverses = _norm_shapes(x, gain, eps, dtype)
    run(norm.rms_norm, x.contiguous(), gain, eps, y, inverses)
    return y, inverses


def _norm_shapes(x: Tensor, gain: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _norm_backward(by_y: Tensor, x: Tensor, gain: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor]:
    by_x = x.new_empty(x.shape)
    by_gain = gain.new_empty(-(-inverses.numel() // norm.ROWS), len(gain))
    run(norm.rms_norm_backward, x.contiguous(), gain, inverses, by_y.contiguous(), by_x, by_gain)
    return by_x, by_gain.sum(0)


_norm_operator = define(
    "rms_norm", "(Tensor x, Tensor gain, float eps, ScalarType dtype) -> (Tensor, Tensor)", _norm, _norm_shapes
)
_norm_backward_operator = define(
    "rms_norm_backward",
    "(Tensor by_y, Tensor x, Tensor gain, Tensor inverses) -> (Tensor, Tensor)",
    _norm_backward,
    lambda _by_y, x, gain, _inverses: (x.new_empty(x.shape), torch.empty_like(gain)),
)


def _save_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, gain, _, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, gain, output[1])


differentiate(
    _norm_operator, lambda ctx, by_y, _: (*_norm_backward_operator(by_y, *ctx.saved_tensors), None, None), _save_norm
)


def rms_norm(x: Tensor, gain: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`gain * x / sqrt(mean(x²) + eps)` over the last dimension; sums are in float32."""
    y: Tensor = _norm_operator(x, gain.float(), eps, dtype)[0]
    return y


# SwiGLU


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    inner = torch.empty_like(gate)
    run(feed_forward.swiglu, gate, up, inner)
    return inner


def _swiglu_backward(by_inner: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    by_gate, by_up = torch.empty_like(gate), torch.empty_like(up)
    run(feed_forward.swiglu_backward, gate, up, by_inner.contiguous(), by_gate, by_up)
    return by_gate, by_up


_swiglu_operator = define("swiglu", "(Tensor gate, Tensor up) -> Tensor", _swiglu, lambda x, _: torch.empty_like(x))
_swiglu_backward_operator = define(
    "swiglu_backward",
    "(Tensor by_inner, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    _swiglu_backward,
    lambda _, gate, up: (torch.empty_like(gate), torch.empty_like(up)),
)
differentiate(
    _swiglu_operator,
    lambda ctx, by_inner: _swiglu_backward_operator(by_inner, *ctx.saved_tensors),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),  # noqa: ARG005
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    inner: Tensor = _swiglu_operator(gate.contiguous(), up.contiguous())
    return inner


# RoPE


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, forward: bool) -> Tensor:
    """`x` [B, heads, T, head_dim]: the heads of each token lie side by side before, the tokens of each head after."""
    windows, heads, tokens, head_dim = x.shape
    if x.stride(3) != 1:
        x = x.contiguous()
    out = _rotate_shapes(x, cos, sin, forward)
    strides, out_strides = ([each.stride(0), each.stride(2), each.stride(1)] for each in (x, out))
    sizes = [windows, tokens, heads, head_dim]
    run(rope.rotate_heads, x, strides, cos, sin, 1.0 if forward else -1.0, out, out_strides, sizes)
    return out


def _rotate_shapes(x: Tensor, cos: Tensor, sin: Tensor, forward: bool) -> Tensor:  # noqa: ARG001
    if forward:
        return x.new_empty(x.shape)
    windows, heads, tokens, head_dim = x.shape
    return x.new_empty(windows, tokens, heads, head_dim).transpose(1, 2)


_rotate_operator = define(
    "rotate", "(Tensor x, Tensor cos, Tensor sin, bool forward) -> Tensor", _rotate, _rotate_shapes
)


def _save_angles(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    _, cos, sin, ctx.forward = inputs
    ctx.save_for_backward(cos, sin)


differentiate(
    _rotate_operator,
    lambda ctx, by_out: (_rotate_operator(by_out, *ctx.saved_tensors, not ctx.forward), None, None, None),
    _save_angles,
)


def rotate_heads(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `rope.rotate`, for angles [T, head_dim / 2] that all windows share."""
    out: Tensor = _rotate_operator(x, cos, sin, True)
    return out


# Cross-entropy


def _cross_entropy(
    logits: Tensor, targets: Tensor, counts: Tensor, z_loss: float, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    if len(targets) and not 0 <= targets.min() <= targets.max() < logits.shape[1]:
        raise RuntimeError(f"a target is out of bounds: they must be from 0 to {logits.shape[1] - 1}")
    target_logits, log_denominators = torch.empty_like(counts), torch.empty_like(counts)
    run(loss.cross_entropy, logits, targets, counts, z_loss, with_gradient, target_logits, log_denominators)
    return target_logits, log_denominators


_cross_entropy_operator = define(
    "cross_entropy",
    "(Tensor(a!) logits, Tensor targets, Tensor counts, float z_loss, bool with_gradient) -> (Tensor, Tensor)",
    _cross_entropy,
    lambda _logits, _targets, counts, _z_loss, _with: (torch.empty_like(counts), torch.empty_like(counts)),
)


def cross_entropy(
    logits: Tensor, targets: Tensor, counts: Tensor, z_loss: float, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The logits of the targets and the logs of the softmaxes' denominators; the loss's gradient replaces the logits.

    Outside of autograd.

    Args:
        logits: [N, vocab_size].
        targets: int64 [N, 1].
        counts: float32 [N, 1], what each target counts in the loss.
        z_loss: See `trainer.components.loss.next_token_loss`.
        with_gradient: Whether the gradient is wanted; else the logits stay.
    """
    scores: tuple[Tensor, Tensor] = _cross_entropy_operator(logits, targets, counts, z_loss, with_gradient)
    return scores
