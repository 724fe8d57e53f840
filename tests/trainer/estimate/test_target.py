"""Which machine an estimate is for."""

import pytest
import torch

from trainer.errors import UsageError
from trainer.estimate.target import choose_target
from trainer.settings.hardware import HardwareSettings
from trainer.settings.train import MachineSettings

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def target(device: str = "auto", dtype: str = "auto", **hardware: object):
    return choose_target(MachineSettings(device=device, dtype=dtype), HardwareSettings(**hardware), d_model=64)


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("a100-80g", "float32", 19.5e12),
        ("a100-80g", "bfloat16", 312e12),
        ("a100-80g", "auto", 312e12),
        ("t4", "auto", 8.1e12),
        ("t4", "float32", 8.1e12),
    ],
)
def test_the_precision_chooses_the_peak(name: str, dtype: str, peak: float) -> None:
    found = target(dtype=dtype, machine=name)
    assert (found.peak, found.here, found.device.torch_device.type) == (peak, False, "cuda")


def test_figures_beside_a_name_take_precedence() -> None:
    found = target(machine="a100-80g", memory="40G", peak_flops=1e12, utilization=0.3, devices=4)
    assert (found.memory, found.peak, found.utilization, found.devices) == (40 << 30, 1e12, 0.3, 4)


@no_gpu
def test_a_gpu_that_is_not_here_may_be_described() -> None:
    found = target("cuda", memory="80G", peak_flops=19.5e12)
    assert (found.name, found.here) == ("cuda as described, bfloat16", False)
    assert target("cuda", "float32", memory="80G").peak is None
    assert target("cuda:1", peak_flops=1e12).memory is None
    assert target("mps", memory="16G").device.dtype == torch.float32


def test_without_a_device_the_figures_are_of_this_machine() -> None:
    found = target("cpu", "float32", memory="80G", peak_flops=19.5e12)
    assert (found.name, found.here, found.memory) == ("cpu as described, float32", True, 80 << 30)
    assert target("cpu", "float32").name.startswith("cpu (")


@no_gpu
@pytest.mark.parametrize(
    ("device", "dtype", "hardware", "message"),
    [
        ("cuda", "auto", {}, "not available .*; or describe another machine: --machine NAME, or --memory and --peak"),
        ("cpu", "auto", {"machine": "t4"}, "--machine t4 is a GPU; omit --device cpu"),
        ("mps", "auto", {"machine": "t4"}, "--machine t4 is a GPU; omit --device mps"),
        ("auto", "bfloat16", {"machine": "v100-16g"}, "--machine v100-16g has no bfloat16; use --dtype float32"),
        ("mps", "bfloat16", {"memory": "16G"}, "device 'mps' does not support bfloat16"),
        ("meteor", "auto", {"memory": "16G"}, "device 'meteor' is not available"),
    ],
)
def test_contradictions_are_refused(device: str, dtype: str, hardware: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        target(device, dtype, **hardware)
