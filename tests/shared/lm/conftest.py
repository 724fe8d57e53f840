"""Tiny models, built once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from shared.lm import ModelConfig, Transformer


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_config() -> Callable[..., ModelConfig]:
    """Return a factory of small configs: two layers, grouped heads, a head_dim that is not d_model / num_heads."""

    def make(**changes: Any) -> ModelConfig:
        values: dict[str, Any] = {
            "vocab_size": 97,
            "context_length": 512,
            "d_model": 32,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 12,
            "d_ff": 48,
            # Large weights, so that a mistake anywhere moves the logits far more than rounding does.
            "initializer_range": 0.2,
        }
        return ModelConfig(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def make_model(make_config: Callable[..., ModelConfig]) -> Callable[..., Transformer]:
    """Return a factory of small random models, the same for the same arguments; gains are random too."""

    def make(*, seed: int = 0, **changes: Any) -> Transformer:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Transformer(make_config(**changes)).eval()
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    torch.nn.init.uniform_(parameter, 0.5, 1.5)
        return model.requires_grad_(False)

    return make
