"""The linear layers of a Transformer, faster in training and evaluation on x86 processors."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this build of torch has oneDNN's operator."""

SMALLEST_PRODUCT = 1 << 26
"""Multiplications from which the faster product outweighs its overhead in Python."""


class Linear(nn.Linear):
    """`nn.Linear`, by default without bias, whose large products in float32 on a CPU are oneDNN's.

    torch uses MKL, which is slower on AMD processors: by a tenth on Zen 3, by half on Zen 5. In torch's inference mode,
    in which text is generated, it is `nn.Linear`: a row must not depend on how many are computed with it.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, by oneDNN in training and evaluation where that is faster; the weight may be frozen."""
    # torch.compile cannot trace the question whether the mode is on, and no compiled model generates.
    inference = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    if not inference and has_fast_product(x, weight):
        output: Tensor = _FastLinear.apply(x, weight)  # type: ignore[no-untyped-call]
        return output if bias is None else output + bias
    return F.linear(x, weight, bias)


def has_fast_product(x: Tensor, weight: Tensor) -> bool:
    """Whether `fast_product` applies and is faster: a large float32 product on a CPU with oneDNN, no autocast."""
    return (
        HAS_ONEDNN
        and x.device.type == "cpu"
        and x.numel() * len(weight) >= SMALLEST_PRODUCT
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def fast_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` by oneDNN, outside of autograd: [..., out] of x [..., in] and weight [out, in] of any strides."""
    product: Tensor = _compiled_product(x, weight) if torch.compiler.is_compiling() else _product(x, weight)
    return product


def _product(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


# torch.compile expects packed weights in oneDNN's operator, so it gets a custom operator, whose calls cost 0.1 ms more.
_compiled_product = torch.library.custom_op("ownlm::product", _product, mutates_args=())


@_compiled_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


class _FastLinear(torch.autograd.Function):
    """Products by oneDNN, except the weight's gradient, for which oneDNN would transpose copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x if weight.requires_grad else None, weight)
        return fast_product(x, weight)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad
        by_x = fast_product(by_output, weight.t()) if need_x else None
        by_weight = by_output.reshape(-1, len(weight)).t() @ x.reshape(-1, x.shape[-1]) if need_weight else None
        return by_x, by_weight
