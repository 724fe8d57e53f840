"""Root-mean-square normalization."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the field uses
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Scale the last dimension to a root mean square of 1, times a learned gain (Zhang & Sennrich 2019, 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., size] to [..., size], in x's dtype."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
