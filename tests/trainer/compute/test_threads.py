"""How many threads torch computes with."""

from collections.abc import Iterator

import pytest
import torch

from trainer.compute import threads
from trainer.compute.threads import prepare_threads


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("available", "expected"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_a_container_limited_to_fewer_processors_computes_with_as_many_threads(
    monkeypatch: pytest.MonkeyPatch, available: int, expected: int
) -> None:
    monkeypatch.setattr(threads, "available_processors", lambda: available)
    prepare_threads(None)
    assert torch.get_num_threads() == expected


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_processors", lambda: 1)
    prepare_threads(3)
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    torch.set_num_threads(4)
    prepare_threads(None)
    assert torch.get_num_threads() == 4
