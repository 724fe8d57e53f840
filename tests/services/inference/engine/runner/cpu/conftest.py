"""Small models of every shape that is served, and runners of them."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from services.inference.engine.runner.cpu.kernels.intrinsics import FLOAT32
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.sampler.cpu import CpuSampler
from shared.lm import Llama3Scaling, ModelConfig, RopeConfig, Transformer

CONTEXT_LENGTH = 96
NUM_BLOCKS = 40
MAX_ROWS = 8
MAX_STEP_TOKENS = 64

CONFIGS = {
    # No width is a whole number of vectors or panels.
    "odd widths": ModelConfig(vocab_size=101, context_length=CONTEXT_LENGTH, d_model=36, num_layers=2, num_heads=2,
                              num_kv_heads=2, head_dim=18, d_ff=41, tie_embeddings=False, attention_bias="qkvo"),
    "grouped heads": ModelConfig(vocab_size=64, context_length=CONTEXT_LENGTH, d_model=64, num_layers=2, num_heads=4,
                                 num_kv_heads=2, head_dim=16, d_ff=96, norm_eps=1e-3),
    "qwen3": ModelConfig(vocab_size=200, context_length=CONTEXT_LENGTH, d_model=50, num_layers=2, num_heads=6,
                         num_kv_heads=2, head_dim=112, d_ff=70, qk_norm=True, rope=RopeConfig(theta=1e6)),
    "llama3": ModelConfig(vocab_size=97, context_length=CONTEXT_LENGTH, d_model=32, num_layers=1, num_heads=1,
                          num_kv_heads=1, head_dim=64, d_ff=33,
                          rope=RopeConfig(theta=500.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 16))),
}  # fmt: skip

MakeRunner = Callable[..., CpuRunner]


@pytest.fixture(scope="session")
def models() -> dict[str, Transformer]:
    """A model of each config, with weights large enough that a mistake in any part shows in the logits."""
    torch.manual_seed(5)
    models = {}
    for name, config in CONFIGS.items():
        model = models[name] = Transformer(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.mul_(6)
    return models


@pytest.fixture
def make_runner() -> Iterator[MakeRunner]:
    """Makes runners of a model, whose threads end with the test."""
    pools = []

    def make(
        model: Transformer, num_threads: int = 1, thread_counts: Sequence[int] = (), kv_kind: int = FLOAT32
    ) -> CpuRunner:
        thread_pool = KernelThreadPool(num_threads)
        pools.append(thread_pool)
        tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        return CpuRunner(
            model.config,
            pack_weights(model.config, tensors),
            CpuSampler(model.config.vocab_size, MAX_ROWS, num_threads=num_threads, run=thread_pool.run),
            thread_pool,
            num_blocks=NUM_BLOCKS,
            num_slots=MAX_ROWS,
            max_step_tokens=MAX_STEP_TOKENS,
            context_length=CONTEXT_LENGTH,
            kv_kind=kv_kind,
            thread_counts=thread_counts,
        )

    yield make
    for thread_pool in pools:
        thread_pool.close()


def logits_of(runner: CpuRunner, segments: Sequence[Segment]) -> "list[np.ndarray]":
    """The logits after every token of each segment, [tokens, vocab_size] each."""
    ends = runner.forward(segments)
    found = []
    for segment, end in zip(segments, ends, strict=True):
        places = range(end - len(segment.tokens), end)
        parts = [runner.logits(places[first : first + MAX_ROWS]).copy() for first in range(0, len(places), MAX_ROWS)]
        found.append(np.concatenate(parts))
    return found
