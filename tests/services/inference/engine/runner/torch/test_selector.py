"""Which operations a device gets, and why."""

import pytest
import torch

from services.inference.engine.runner.torch import selector
from services.inference.engine.runner.torch.plain_operations import PlainOperations
from services.inference.engine.runner.torch.triton_operations import TritonOperations

CUDA = torch.device("cuda")


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: getattr(request, "param", (9, 0)))
    monkeypatch.setattr(selector, "find_spec", lambda _: object())
    monkeypatch.setattr(selector.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("capability")
def test_a_gpu_with_triton_and_a_compiler_gets_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(selector.operations_for(CUDA), TritonOperations)
    assert isinstance(selector.operations_for(torch.device("cpu")), PlainOperations)
    monkeypatch.setattr(selector.shutil, "which", lambda _: None)
    assert isinstance(selector.operations_for(CUDA), PlainOperations)
    assert "C compiler" in str(selector.triton_unavailable_reason(CUDA))
    monkeypatch.setenv("CC", "cc")
    assert selector.triton_unavailable_reason(CUDA) is None
    monkeypatch.setattr(selector, "find_spec", lambda _: None)
    assert selector.triton_unavailable_reason(CUDA) == "Triton is not installed"


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("capability", [(7, 5)], indirect=True)
def test_an_older_gpu_is_named() -> None:
    assert "(7, 5)" in str(selector.triton_unavailable_reason(CUDA))
