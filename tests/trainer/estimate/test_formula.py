"""The closed formula against the tensors of the real code."""

from typing import Any

import pytest
import torch

from trainer.components.lora import trained_parameters
from trainer.components.model import model_config
from trainer.compute.device import Device
from trainer.estimate.formula import formula_peak
from trainer.estimate.traced_step import traced_peak
from trainer.settings.lora import LoraSettings
from trainer.settings.train import ModelSettings, OptimizationSettings

pytestmark = pytest.mark.extended

SMALL = {"d_model": 128, "num_layers": 4, "context_length": 128}


@pytest.mark.parametrize(
    ("dtype", "passes"),
    [
        (torch.float32, 1),
        (torch.bfloat16, 2),
        pytest.param(torch.float32, 2, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("vocab_size", "shape", "options"),
    [
        (4096, SMALL, {"batch_size": 16}),
        (300, SMALL, {"batch_size": 16}),  # the last layer's backward pass takes the most
        (4096, SMALL, {"batch_size": 1}),  # the loss's backward pass
        (300, SMALL | {"context_length": 16}, {"batch_size": 1}),  # the update
        (300, SMALL | {"context_length": 16}, {"batch_size": 1, "optimizer": "muon"}),
        (300, SMALL | {"context_length": 16}, {"batch_size": 1, "optimizer": "sgd"}),
        (4096, SMALL | {"context_length": 16}, {"batch_size": 1, "optimizer": "sgd", "momentum": 0.9}),
        (50_257, SMALL, {"batch_size": 8}),
        (4096, SMALL | {"context_length": 1024}, {"batch_size": 4}),
        (4096, SMALL | {"context_length": 1024}, {"batch_size": 4, "document_mask": True}),
        (4096, SMALL | {"context_length": 512}, {"batch_size": 4, "dropout": 0.1, "document_mask": True}),
        (4096, SMALL | {"num_kv_heads": 1, "tie_embeddings": False}, {"batch_size": 16}),
        (4096, SMALL | {"qk_norm": False, "activation": "silu"}, {"batch_size": 16}),
        (4096, SMALL | {"norm": "post", "position": "none"}, {"batch_size": 16}),
        (300, SMALL | {"activation": "relu2"}, {"batch_size": 16}),  # the last layer's backward pass
        (50_257, SMALL | {"logit_soft_cap": 30.0}, {"batch_size": 16}),
        (4096, SMALL | {"logit_soft_cap": 30.0}, {"batch_size": 1}),
        (4096, SMALL | {"value_residual": True, "num_kv_heads": 1}, {"batch_size": 16}),
        (4096, SMALL | {"value_residual": True, "context_length": 512}, {"batch_size": 4, "dropout": 0.1}),
        (4096, SMALL | {"norm": "none", "position": "none", "qk_norm": False}, {"batch_size": 16}),
        (1024, {"d_model": 512, "num_layers": 2, "context_length": 256}, {"batch_size": 16, "optimizer": "muon"}),
        (1024, {"d_model": 64, "num_layers": 12, "context_length": 64}, {"batch_size": 2}),
        (4096, SMALL, {"batch_size": 16, "checkpoint_activations": True}),
        (300, SMALL | {"num_layers": 8, "value_residual": True}, {"batch_size": 16, "checkpoint_activations": True}),
        (300, SMALL | {"norm": "post"}, {"batch_size": 16, "checkpoint_activations": True, "dropout": 0.1}),
    ],
)
def test_the_formula_gives_what_tracing_records(
    vocab_size: int, shape: dict[str, Any], options: dict[str, int], passes: int, dtype: torch.dtype
) -> None:
    """At most 3 % too low, and at most 6 % too high."""
    config, o = model_config(ModelSettings(**shape), vocab_size), OptimizationSettings(**options)
    device = Device(torch.device("cpu"), dtype)
    traced = sum(traced_peak(o, config, device, passes).values())
    assert 0.97 * traced <= sum(formula_peak(o, config, device, passes).values()) <= 1.06 * traced


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"checkpoint_activations": True}, {"optimizer": "muon"}], ids=str)
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "gate_proj,down_proj"])
def test_frozen_weights_have_neither_gradients_nor_state(
    targets: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    config, o = model_config(ModelSettings(**SMALL), 300), OptimizationSettings(batch_size=16, **options)
    device, lora = Device(torch.device("cpu"), dtype), LoraSettings(lora_rank=8, lora_targets=targets)
    traced = sum(traced_peak(o, config, device, 1, lora).values())
    found = formula_peak(o, config, device, 1, lora)
    assert 0.97 * traced <= sum(found.values()) <= 1.06 * traced
    assert found["optimizer state"] <= 8 * trained_parameters(config, lora) < config.num_parameters
