"""The loss of a training step: output projection and cross-entropy at once, a chunk of rows at a time."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.lm import Transformer
from shared.lm.kernel_calls import has_kernels
from shared.lm.linear import fast_product, has_fast_product
from shared.lm.operators import cross_entropy
from shared.system.stages import current_stage

IGNORED = -100
"""A target that is not scored."""

LOSS_OPERATOR = "ownlm::next_token_loss"
"""`chunked_loss` as one operator of torch, for torch.compile and autograd."""

# Rows at once on a CPU: their logits stay within the cache. GPUs need many rows to be busy.
_ROWS_ON_CPU = 512
_ROWS_ELSEWHERE = 4096
_SHARE_TO_LEAVE_OUT = 0.95


def chunk_rows(device: torch.device) -> int:
    """Rows whose logits exist at once."""
    return _ROWS_ON_CPU if device.type == "cpu" else _ROWS_ELSEWHERE


class TrainingLoss(nn.Module):
    """A model and its loss as one module: what DDP and FSDP wrap and torch.compile compiles.

    So the output projection's weight is used inside the wrapped forward pass, where FSDP has gathered it and DDP's
    hooks see its gradient. The model's own `state_dict` is the one to save.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Tensor, targets: Tensor, *, scale: float | Tensor, z_loss: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss of windows, as `next_token_loss` gives it.

        Args:
            inputs: int64 [windows, length].
            targets: int64 [windows, length]; -100 is not scored.
            scale: What every target counts, usually 1 / the number of scored targets of the whole step.
            z_loss: See `next_token_loss`.
        """
        hidden, cap = self.model.hidden(inputs), self.model.config.logit_soft_cap
        return next_token_loss(hidden, self.model.output_weight, targets, scale=scale, z_loss=z_loss, soft_cap=cap)


def next_token_loss(
    hidden: Tensor,
    output_weight: Tensor,
    targets: Tensor,
    *,
    scale: float | Tensor,
    z_loss: float = 0.0,
    soft_cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the targets under the logits `hidden @ output_weight.T`, which never exist all at once.

    Both gradients are computed on the way, a chunk of rows at a time, as Liger Kernel does on GPUs (Hsu et al. 2024,
    arXiv 2410.10989, section 3.2). Softmax and sums are in float32 (in float64 for float64); under autocast the matrix
    products have its precision.

    Args:
        hidden: The final residual stream, [..., d_model].
        output_weight: The output projection, [vocab_size, d_model]; not a shard of it.
        targets: int64 [...], from 0 to vocab_size - 1, or -100 where nothing is scored.
        scale: What every target counts. As a tensor it may change without torch.compile compiling again.
        z_loss: Adds this times the square of the log of the softmax's denominator, which keeps logits from drifting
            (Chowdhery et al. 2022, "PaLM", arXiv 2204.02311, section 5; 1e-4 there).
        soft_cap: Logits x become soft_cap * tanh(x / soft_cap) first (`ModelConfig.logit_soft_cap`); 0 for none.

    Returns:
        Two scalars: what to call `backward` on, and the cross-entropy alone, detached. Both are sums over the scored
        targets times `scale`, and 0 where there are none.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    with_weight = torch.is_grad_enabled() and output_weight.requires_grad
    with_gradients = with_weight or (torch.is_grad_enabled() and hidden.requires_grad)
    scale = torch.as_tensor(scale, dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
    rows, scored = hidden.flatten(0, -2), targets.flatten()
    loss, nats, _, _ = torch.ops.ownlm.next_token_loss(
        rows, output_weight, scored, scale.to(hidden.device), z_loss, soft_cap, with_gradients, with_weight
    )
    return loss, nats


def chunked_loss(  # noqa: PLR0917 - an operator of torch has positional arguments
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor,
    z_loss: float,
    soft_cap: float,
    with_gradients: bool,
    with_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, cross-entropy, and the loss's gradients by `hidden` [N, d] and `weight` [V, d] (empty where not asked).

    One operator for torch.compile and autograd: nothing of a chunk outlives it.
    """
    kept = _rows_that_count(targets)
    options = scale, z_loss, soft_cap, with_gradients, with_weight
    if kept is None:
        return loss_of_rows(hidden, weight, targets, *options)
    loss, nats, some, weight_gradient = loss_of_rows(hidden[kept], weight, targets[kept], *options)
    hidden_gradient = torch.zeros_like(hidden if with_gradients else hidden[:0])
    if with_gradients:
        hidden_gradient[kept] = some
    return loss, nats, hidden_gradient, weight_gradient


def _rows_that_count(targets: Tensor) -> Tensor | None:
    """The numbers of the rows with a target, where leaving the others out saves time: as of conversations, on a CPU."""
    if targets.device.type != "cpu":  # a GPU would have to be waited for
        return None
    counted = (targets != IGNORED).nonzero().flatten()
    return counted if len(counted) < _SHARE_TO_LEAVE_OUT * len(targets) else None


def loss_of_rows(  # noqa: PLR0917 - as above
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor,
    z_loss: float,
    soft_cap: float,
    with_gradients: bool,
    with_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `chunked_loss`, for every row, whether it has a target or not."""
    rows = chunk_rows(hidden.device)
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    matrix = weight.to(hidden.dtype)
    total, squares = hidden.new_zeros(2, dtype=exact).unbind()
    hidden_gradient = torch.empty_like(hidden if with_gradients else hidden[:0])
    weight_gradient = torch.zeros_like(weight if with_weight else weight[:0])
    for first in range(0, len(hidden), rows):
        some, some_targets = hidden[first : first + rows], targets[first : first + rows].unsqueeze(1)
        scored = some_targets != IGNORED
        counts = scored.to(exact) * scale
        logits = _product(some, matrix)
        in_place, share = has_kernels(logits), None
        if soft_cap or not in_place:
            logits = logits.to(exact)
        if soft_cap:
            share = (logits / soft_cap).tanh_()  # of the cap, from -1 to 1
            torch.mul(share, soft_cap, out=logits)
        score = _score_in_place if in_place else _score
        picked = some_targets.where(scored, 0)
        target_logits, log_denominators, by_logits = score(logits, picked, counts, z_loss, with_gradients)
        total += ((log_denominators - target_logits) * counts).sum()
        squares += (log_denominators.square() * counts).sum()
        if with_gradients:
            if share is not None:
                by_logits *= share.square_().neg_().add_(1)  # the derivative of the cap
            by_logits = by_logits.to(hidden.dtype)
            hidden_gradient[first : first + rows] = _product(by_logits, matrix.t())
            if with_weight:
                _add_product(weight_gradient, by_logits.t(), some)
    return total + z_loss * squares, total.clone(), hidden_gradient, weight_gradient


def _score_in_place(
    logits: Tensor, targets: Tensor, counts: Tensor, z_loss: float, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_score`, by a kernel that writes the gradient over the logits, in their precision."""
    target_logits, log_denominators = cross_entropy(logits, targets, counts, z_loss, with_gradients)
    return target_logits, log_denominators, logits


def _score(
    logits: Tensor, targets: Tensor, counts: Tensor, z_loss: float, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of the targets, the logs of the softmaxes' denominators, and the loss's gradient by the logits.

    Args:
        logits: [N, vocab_size], which may be overwritten; in the precision of the result.
        targets: int64 [N, 1].
        counts: What each target counts, [N, 1].
        z_loss: See `next_token_loss`.
        with_gradients: Whether the gradient is wanted.
    """
    target_logits, largest = logits.gather(1, targets), logits.amax(1, keepdim=True)
    probabilities = torch.softmax(logits, dim=1, out=logits)
    # The largest probability never underflows, the target's may.
    log_denominators = largest - probabilities.amax(1, keepdim=True).log()
    if with_gradients:
        probabilities *= counts * (1 + 2 * z_loss * log_denominators)
        probabilities.scatter_add_(1, targets, -counts)
    return target_logits, log_denominators, probabilities


def _staged_loss(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`chunked_loss` in a stage of its own: here, since torch.compile calls this function, and compiles its callers."""
    with current_stage.get()("loss", len(arguments[0])):
        return chunked_loss(*arguments)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`, which no gradient flows through."""
    return fast_product(x, weight) if has_fast_product(x, weight) else F.linear(x, weight)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` in the precision of `total`."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


# Defined by its schema, not by `torch.library.custom_op`: what that makes imports the 800 modules of torch.compile when
# it is first called, a second that a program which compiles nothing need not wait for.
torch.library.define(
    LOSS_OPERATOR,
    "(Tensor hidden, Tensor weight, Tensor targets, Tensor scale, float z_loss, float soft_cap, bool with_gradients, "
    "bool with_weight)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl(LOSS_OPERATOR, "CompositeExplicitAutograd", _staged_loss)


@torch.library.register_fake(LOSS_OPERATOR)  # type: ignore[untyped-decorator] # of torch
def _(
    hidden: Tensor,
    weight: Tensor,
    _targets: Tensor,
    _scale: Tensor,
    _z_loss: float,
    _cap: float,
    with_gradients: bool,
    with_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    scalar = hidden.new_empty((), dtype=exact)
    by_hidden, by_weight = hidden if with_gradients else hidden[:0], weight if with_weight else weight[:0]
    return scalar, torch.empty_like(scalar), torch.empty_like(by_hidden), torch.empty_like(by_weight)


def _save_gradients(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def] # noqa: ARG001
    _, nats, hidden_gradient, weight_gradient = output
    ctx.mark_non_differentiable(nats, hidden_gradient, weight_gradient)
    ctx.save_for_backward(hidden_gradient, weight_gradient)


def _scale_gradients(ctx, by_loss, *_):  # type: ignore[no-untyped-def]
    hidden_gradient, weight_gradient = ctx.saved_tensors
    by_weight = by_loss * weight_gradient if len(weight_gradient) else None
    return by_loss * hidden_gradient, by_weight, *(6 * (None,))


torch.library.register_autograd(LOSS_OPERATOR, _scale_gradients, setup_context=_save_gradients)
