"""The matrix products of a step and nothing else: how fast this machine multiplies matrices of these shapes."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.training.shape import CONTEXT, D_FF, LAYERS, VOCAB_SIZE, WIDTH
from shared.lm.linear import HAS_ONEDNN, fast_product

# Inner and outer width of the weights, and how many of them a step has.
_SHAPES = ((WIDTH, WIDTH, 4 * LAYERS), (WIDTH, D_FF, 2 * LAYERS), (D_FF, WIDTH, LAYERS), (WIDTH, VOCAB_SIZE, 1))
FLOPS_PER_TOKEN = 6 * sum(inner * outer * count for inner, outer, count in _SHAPES)


def products(batch: int, *, onednn: bool, dtype: str = "float32") -> Callable[[], None]:
    """The forward products and the gradients of inputs and weights, for `batch` windows, into memory that is there.

    Args:
        batch: Windows of a step.
        onednn: By oneDNN, where it is the faster one, as in our step; else all by `torch.mm`, which is oneDNN's in
            bfloat16.
        dtype: Of all matrices.
    """
    rows, kind = batch * CONTEXT, getattr(torch, dtype)
    onednn = onednn and HAS_ONEDNN and dtype == "float32"
    work = []
    for inner, outer, count in _SHAPES:
        x, weight, by_output = (
            torch.randn(shape, dtype=kind) for shape in ((rows, inner), (outer, inner), (rows, outer))
        )
        first = fast_product if onednn else _mm(torch.empty(rows, outer, dtype=kind))
        second = fast_product if onednn else _mm(torch.empty(rows, inner, dtype=kind))
        third = _mm(torch.empty(outer, inner, dtype=kind))
        work.append((count, ((first, x, weight), (second, by_output, weight.t()), (third, by_output.t(), x.t()))))

    def step() -> None:
        for count, three in work:
            for _ in range(count):
                for multiply, left, right in three:
                    multiply(left, right)

    return step


def _mm(output: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda left, right: torch.mm(left, right.t(), out=output)
