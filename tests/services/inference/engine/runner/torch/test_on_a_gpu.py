"""The runner on a real GPU: what `benchmarks.gpu` checks in more sizes."""

import pytest
import torch

from benchmarks.gpu import answers, faults, graphs
from benchmarks.gpu.shapes import TINY

pytestmark = pytest.mark.cuda

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_is_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    same, seen = answers.isolation(answers.new_model(TINY, "cuda", dtype), rows=5, new_tokens=64)
    assert same, seen


def test_greedy_text_is_that_of_the_cpu() -> None:
    share, seen = answers.agreement(TINY, "cuda", torch.float32, new_tokens=16)
    assert share > 0.99, seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_two_graphs_and_waits_for_its_tokens_alone(dtype: torch.dtype) -> None:
    assert graphs.replays_of_a_step(TINY, "cuda", dtype, temperature=0.9, top_p=0.9) == 4


def test_after_an_assertion_on_the_device_another_process_gives_the_same_tokens(tmp_path) -> None:
    restarted, seen = faults.restart_after_fault(TINY, "cuda", tmp_path)
    assert restarted, seen
