"""The kernel of `draw_kernel` as an operator of torch: one launch."""

import torch
from torch import Tensor

_BLOCK = 2048
"""Ids that a program looks at at once."""


@torch.library.custom_op("ownlm::draw", mutates_args=("seen",))
def triton_draw(  # noqa: PLR0917 - an operator takes no tuples
    logits: Tensor, controls: Tensor, valid: Tensor, bias: Tensor, seen: Tensor, stops: Tensor
) -> Tensor:
    """See `TorchSampler.sample_on_device`."""
    from services.inference.engine.sampler import draw_kernel

    rows, size = logits.shape
    scores, weights = torch.empty_like(logits), torch.empty_like(logits, dtype=torch.float64)
    tokens = logits.new_empty(rows, dtype=torch.int64)
    draw_kernel.draw[(rows,)](
        logits, controls, valid, bias, seen, stops, scores, weights, tokens, size, controls.shape[1], _BLOCK,
        num_warps=8,
    )  # fmt: skip
    return tokens


@triton_draw.register_fake
def _(logits: Tensor, *_: Tensor) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.int64)
