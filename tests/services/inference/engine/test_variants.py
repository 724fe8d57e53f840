"""Every supported variant of the architecture through both runners: transformers, which wrote it, is the oracle."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from services.inference.engine.runner.cpu.panels import KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Runner, Segment
from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.types import SequenceRequest
from shared.lm import SamplingParams, load_weights, read_config
from shared.lm.stored_weights import StoredWeights
from tests.shared.lm.variants import (
    CONTEXT_LENGTH,
    NEW_TOKENS,
    PROMPT_TOKENS,
    VARIANTS,
    VOCAB_SIZE,
    Variant,
    WrittenVariant,
)

BLOCKS = list(range(20))
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def thread_pool() -> Iterator[KernelThreadPool]:
    thread_pool = KernelThreadPool(2)
    yield thread_pool
    thread_pool.close()


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WrittenVariant:
    variant: Variant = request.param
    return variant.write(tmp_path_factory.mktemp("variant"))


def cpu_runner(written: WrittenVariant, thread_pool: KernelThreadPool, kind: str) -> CpuRunner:
    config = read_config(written.folder)
    with StoredWeights(written.folder, config) as stored:
        weights = pack_weights(config, stored, KINDS[kind])
    return CpuRunner(
        config,
        weights,
        CpuSampler(VOCAB_SIZE, PROMPT_TOKENS, num_threads=2, run=thread_pool.run),
        thread_pool,
        num_blocks=len(BLOCKS),
        num_slots=PROMPT_TOKENS,
        max_step_tokens=PROMPT_TOKENS,
        context_length=CONTEXT_LENGTH,
    )


def greedy(runner: Runner, prompt: Sequence[int]) -> list[int]:
    runner.open_slot(0, SequenceRequest(tuple(prompt), GREEDY, NEW_TOKENS, frozenset()))
    tokens, start = list(prompt), 0
    for _ in range(NEW_TOKENS):
        (draw,) = runner.run([Segment(tokens[start:], start, BLOCKS, sample_slots=(0,))]).sampled_tokens
        start = len(tokens)
        tokens.append(draw.token)
    return tokens[len(prompt) :]


def test_the_compiled_step_equals_transformers(written: WrittenVariant, thread_pool: KernelThreadPool) -> None:
    runner, prompt = cpu_runner(written, thread_pool, "float32"), written.prompt[0].tolist()
    runner.forward([Segment(prompt, 0, BLOCKS)])
    np.testing.assert_allclose(runner.logits(range(PROMPT_TOKENS)), written.logits.numpy(), rtol=0, atol=1e-4)
    assert greedy(runner, prompt) == written.greedy


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_smaller_weights_are_near(written: WrittenVariant, thread_pool: KernelThreadPool, kind: str) -> None:
    """Biases are not rounded; were they left out, nothing would be alike."""
    runner = cpu_runner(written, thread_pool, kind)
    runner.forward([Segment(written.prompt[0].tolist(), 0, BLOCKS)])
    logits, expected = runner.logits(range(PROMPT_TOKENS)), written.logits.numpy()
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.995


def test_the_torch_runner_equals_transformers(written: WrittenVariant) -> None:
    model, _ = load_weights(written.folder, read_config(written.folder), dtype=torch.float32)
    runner = TorchRunner(
        model, num_blocks=len(BLOCKS), num_slots=4, max_length=CONTEXT_LENGTH, max_step_tokens=PROMPT_TOKENS
    )
    assert greedy(runner, written.prompt[0].tolist()) == written.greedy
