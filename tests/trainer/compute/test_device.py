from types import SimpleNamespace

import pytest
import torch

from trainer.compute.device import choose_device
from trainer.errors import UsageError


@pytest.mark.parametrize("name", ["cuda:99", "meteor", "cpu:x"])
def test_a_device_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"device '{name}' is not available .*`--device cpu` always works"):
        choose_device(name)


def pretend_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: SimpleNamespace(device=torch.device("cuda", 0)))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


def test_a_gpu_without_bfloat16_falls_back_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """B81."""
    pretend_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    assert choose_device("cuda").dtype == torch.float32
    with pytest.raises(UsageError, match="does not support bfloat16; use `--dtype float32`"):
        choose_device("cuda", "bfloat16")


def test_a_gpu_with_bfloat16_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert choose_device("cuda").dtype == torch.bfloat16
    assert choose_device("cuda", "float32").dtype == torch.float32


def test_the_cpu_computes_in_float32_unless_told() -> None:
    assert choose_device("cpu").dtype == torch.float32
    device = choose_device("cpu", "bfloat16")
    with device.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("capabilities", "d_model", "expected"),
    [
        ({"avx512_bf16": True}, 256, torch.bfloat16),
        ({"avx512_bf16": False, "amx_bf16": True}, 512, torch.bfloat16),
        ({"avx512_bf16": True}, 255, torch.float32),
        ({"avx512_bf16": False}, 4096, torch.float32),
        ({}, 4096, torch.float32),
    ],
)
def test_a_cpu_with_instructions_for_bfloat16_uses_them_for_wide_models(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], d_model: int, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert choose_device("cpu", d_model=d_model).dtype == expected
    assert choose_device("cpu", "float32", d_model=d_model).dtype == torch.float32


def test_an_older_torch_cannot_tell_what_the_cpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_device("cpu", d_model=4096).dtype == torch.float32
