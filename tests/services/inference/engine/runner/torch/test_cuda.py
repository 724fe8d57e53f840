"""The runner for GPUs with its graphs, on devices that compute on the CPU, and what it makes of a GPU that fails."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.inference.engine.ipc import EngineConfig
from services.inference.engine.runner.protocol import RunnerLostError, Segment
from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.scheduling.core import EngineCore
from services.inference.engine.types import SequenceRequest, TokenEvent
from services.inference.engine.worker.model_loader import LoadedModel, load_model
from shared.lm import SamplingParams, generate, load_model_folder
from tests.pretend_cuda import PretendCuda
from tests.services.inference.engine.runner.torch.test_runner import new_model, new_runner

pytestmark = pytest.mark.extended

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.3, top_p=0.9, seed=4),
    SamplingParams(temperature=1.1, top_k=20, seed=5, repetition_penalty=1.2),
]


@pytest.fixture
def loaded(request: pytest.FixtureRequest, model_dir: Path, cuda: PretendCuda) -> LoadedModel:
    return load_model(EngineConfig(model_dir, device=request.param, dtype="float32", max_batch=4))


@pytest.mark.parametrize(("loaded", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)], indirect=["loaded"])
def test_rows_on_a_gpu_are_those_of_the_cpu(
    loaded: LoadedModel, index: int, model_dir: Path, cuda: PretendCuda
) -> None:
    """On the second one too: a graph that is captured while the first is current holds nothing."""
    model = load_model_folder(model_dir).model
    core = EngineCore(loaded.runner, prefill_tokens=64)
    prompts = [tuple(range(3, 3 + length)) for length in (1, 20, 70)]
    for request_id, (prompt, params) in enumerate(zip(prompts, PARAMS, strict=True)):
        sequence = SequenceRequest(prompt, params, 12, frozenset(), num_logprobs=2)
        core.submit(request_id, [sequence] * (1 + request_id))
    tokens: dict[tuple[int, int], list[int]] = {}
    while core.has_work:
        for event in core.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault((event.request_id, event.sequence_index), []).append(event.token)
    for (request_id, _), found in tokens.items():
        assert found == list(generate(model, prompts[request_id], PARAMS[request_id], max_tokens=12))
    assert len(tokens) == 6
    assert set(cuda.pinned_on) == {index}


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "found", "size"),
    [
        ("auto", "auto", "bfloat16", 2),
        ("float32", "auto", "float32", 4),
        ("float32", "bfloat16", "bfloat16", 2),
        ("bfloat16", "float16", "float16", 2),
        ("bfloat16", "float32", "float32", 4),
    ],
)
def test_the_cache_is_of_the_kind_that_was_asked_for(
    model_dir: Path, cuda: PretendCuda, dtype: str, kv_dtype: str, found: str, size: int
) -> None:
    """And holds twice as many tokens in half the bytes."""
    config = EngineConfig(
        model_dir, device="cuda", dtype=dtype, kv_dtype=kv_dtype, kv_cache_bytes=1 << 20, max_batch=2, context_length=64
    )
    loaded = load_model(config)
    model = load_model_folder(model_dir).config
    assert loaded.ready.kv_dtype == found
    position = 2 * model.num_layers * model.num_kv_heads * model.head_dim * size
    assert loaded.ready.num_blocks == (1 << 20) // (16 * position)
    loaded.runner.open_slot(0, SequenceRequest((1,), PARAMS[0], 1, frozenset()))
    [sampled] = loaded.runner.run([Segment((1, 2, 3), 0, (0,), (0,))]).sampled_tokens
    assert sampled.token >= 0


def test_a_graph_of_another_device_holds_nothing(cuda: PretendCuda) -> None:
    """The pretence: without it, the test above would pass on whatever device was current."""
    tensor, graph = torch.zeros(2, device="cuda:1"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tensor + 1
    tensor += 5
    graph.replay()
    assert result.tolist() == [1, 1]
    torch.cuda.set_device(1)
    with torch.cuda.graph(graph):
        result = tensor + 1
    tensor += 5
    graph.replay()
    assert result.tolist() == [11, 11]


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no error of its own for the device")
@pytest.mark.parametrize("method", ["open_slot", "copy_block", "run"])
def test_a_fault_of_the_device_is_the_end_of_the_runner(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of too little memory is not."""
    runner = new_runner(new_model("grouped, tied"))
    calls = {
        "open_slot": lambda: runner.open_slot(0, SequenceRequest((1,), PARAMS[0], 1, frozenset())),
        "copy_block": lambda: runner.copy_block(0, 1),
        "run": lambda: runner.run([Segment((1,), 0, (0,))]),
    }
    fault = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be")
    no_memory = torch.OutOfMemoryError("CUDA out of memory")
    for error, expected in ((fault, RunnerLostError), (no_memory, torch.OutOfMemoryError)):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(runner._sampler, "open", fail)
            patch.setattr(runner._cache, "copy", fail)
            patch.setattr(TorchRunner, "_run_tiles", fail)
            with pytest.raises(expected) as raised:
                calls[method]()
        if expected is RunnerLostError:
            assert str(raised.value) == "the GPU failed: CUDA error: an illegal memory access was encountered"
