"""Root-mean-square normalization."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn

from shared.lm.kernel_calls import uses_kernels
from shared.lm.operators import rms_norm


class RMSNorm(nn.Module):
    """Scale the last dimension to a root mean square of 1, times a learned gain (Zhang & Sennrich 2019, 1910.07467).

    Args:
        size: Of the last dimension.
        eps: Added to the mean square.
        for_products: Whether only matrix products read the result: it may then have the precision that autocast gives
            them.
    """

    def __init__(self, size: int, eps: float, *, for_products: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.for_products = for_products
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., size] to [..., size], in x's dtype."""
        if uses_kernels(x, self.weight):
            narrow = self.for_products and torch.is_autocast_enabled("cpu")
            return rms_norm(x, self.weight, self.eps, torch.get_autocast_dtype("cpu") if narrow else x.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
