"""The checks of `benchmarks.gpu` on a simulated GPU, and that they notice what is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.gpu import answers, graphs
from benchmarks.gpu.shapes import TINY
from services.inference.engine.runner.torch import runner
from services.inference.engine.runner.torch.plain_operations import PlainOperations
from tests.pretend_cuda import PretendCuda

pytestmark = pytest.mark.extended


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_PROMPT_TILES", (32, 64))


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9, "presence_penalty": 1.0}])
def test_a_step_and_a_prompt_are_two_graphs_each(params: dict[str, float], cuda: PretendCuda) -> None:
    assert graphs.replays_of_a_step(TINY, "cuda", torch.float32, **params) == 4


def test_every_graph_has_a_name_and_a_time(cuda: PretendCuda) -> None:
    step = graphs.Step(TINY, "cuda", torch.float32, rows=2, position=20)
    found = dict(graphs.graphs_of(step.runner))
    assert {"1 generated tokens", "64 prompt tokens", "draw, greedy", "draw, filtered 2"} <= set(found)
    assert len(found) == len(list(graphs.graphs_of(step.runner)))
    assert graphs.device_microseconds(next(iter(found.values())), torch.device("cuda")) == 1000 / 20


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_isolation_is_checked_with_preemptions_and_prefix_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a product whose rows depend on how many there are is noticed."""
    model = answers.new_model(TINY, "cpu", torch.float32)
    same, seen = answers.isolation(model, rows=5, new_tokens=64)
    assert same, seen

    def dependent(run: PlainOperations, x: torch.Tensor, *others: Any) -> torch.Tensor:
        return original(run, x, *others) * (1 + 1e-6 * (len(x) == 1))

    original = PlainOperations.linear
    monkeypatch.setattr(PlainOperations, "linear", dependent)
    same, seen = answers.isolation(model, rows=5, new_tokens=64)
    assert not same
    assert "0 differ" not in seen


def test_greedy_text_of_another_model_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    share, _ = answers.agreement(TINY, "cpu", torch.float32, new_tokens=4)
    assert share == 1
    monkeypatch.setattr(PlainOperations, "swiglu", lambda _, x, weight: x.new_zeros(len(x), len(weight) // 2))
    share, seen = answers.agreement(TINY, "cpu", torch.float32, new_tokens=4)
    assert share < 0.9, seen
