"""The closed formula for a GPU against the tensors of the real code with the kernels that torch runs there.

No GPU is needed: tensors without values take the shapes that those kernels save for the backward pass.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.components.model import model_config
from trainer.compute.device import Device
from trainer.estimate import traced_step
from trainer.estimate.formula import formula_peak
from trainer.estimate.traced_step import traced_peak
from trainer.settings.train import ModelSettings, OptimizationSettings

pytestmark = pytest.mark.extended

aten = torch.ops.aten
SMALL = {"d_model": 128, "num_layers": 4, "context_length": 128}


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """FlashAttention for 16 bits, to which autocast casts; the memory-efficient kernel for float32 or with a mask."""
    dropout, causal = options.get("dropout_p", 0.0), options.get("is_causal", False)
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
    if options.get("enable_gqa"):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if q.dtype == torch.float32 or attn_mask is not None:
        return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, dropout, causal)[0]  # type: ignore
    return aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal)[0]  # type: ignore


class FusedNorm(torch.autograd.Function):
    """RMSNorm in one kernel: keeps its input and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def norm(x: Tensor, _shape: Any, weight: Tensor, _eps: float) -> Tensor:
    """Autocast computes it in float32 (torch's list in ATen/autocast_mode.h)."""
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.float(), weight.float()
    return FusedNorm.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture
def kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    traced_step._peak.cache_clear()
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", attention)
    monkeypatch.setattr("torch.nn.functional.rms_norm", norm)
    for module in ("shared.lm.kernel_calls", "trainer.components.loss"):  # ours are for CPUs
        monkeypatch.setattr(f"{module}.has_kernels", lambda _: False)
    monkeypatch.setattr("trainer.components.loss._ROWS_ON_CPU", 4096)
    yield
    traced_step._peak.cache_clear()


@pytest.mark.usefixtures("kernels_of_a_gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("vocab_size", "shape", "options"),
    [
        (4096, SMALL, {"batch_size": 32}),
        (4096, SMALL, {"batch_size": 16, "total_batch_size": 32}),
        (4096, SMALL | {"qk_norm": False}, {"batch_size": 32}),
        (50_257, SMALL, {"batch_size": 8}),
        (4096, SMALL | {"context_length": 1024}, {"batch_size": 8}),
        (4096, SMALL | {"num_kv_heads": 1}, {"batch_size": 16, "document_mask": True}),
        (4096, SMALL | {"qk_norm": False, "activation": "silu"}, {"batch_size": 16}),
        (1024, {"d_model": 512, "num_layers": 2, "context_length": 256}, {"batch_size": 16, "optimizer": "muon"}),
    ],
)
def test_the_formula_gives_what_tracing_records(
    vocab_size: int, shape: dict[str, int], options: dict[str, Any], dtype: torch.dtype
) -> None:
    config, o = model_config(ModelSettings(**shape), vocab_size), OptimizationSettings(**options)
    passes = 1 if o.total_batch_size is None else 2
    traced = traced_peak(o, config, Device(torch.device("cpu"), dtype), passes)
    found = formula_peak(o, config, Device(torch.device("cuda"), dtype), passes)
    assert sum(found.values()) == pytest.approx(sum(traced.values()), rel=0.02)
