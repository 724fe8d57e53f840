"""GPUs by name, against figures that others published, and the documentation."""

import re

import pytest

from tests.docs.pages import DOCS
from trainer.errors import UsageError
from trainer.estimate.gpus import GPUS, find_gpu
from trainer.settings.hardware import HardwareSettings

NANOCHAT = {  # issue 60 of karpathy/nanochat, from NVIDIA's white papers: bfloat16 without sparsity, sums in float32
    "rtx-3090": 71e12,
    "rtx-4090": 165.2e12,
    "rtx-5090": 209.5e12,
    "a100-40g": 312e12,
    "a100-80g": 312e12,
    "h100": 989e12,
    "h200": 989e12,
}
MODAL = {  # pull request 2797 of modal-labs/modal-client: bytes, from nvidia-smi
    "h100": 85.52e9,
    "a100-80g": 85.89e9,
    "a100-40g": 42.94e9,
    "l4": 24.15e9,
    "t4": 16.11e9,
}


@pytest.mark.parametrize(("name", "rate"), NANOCHAT.items())
def test_rates_in_bfloat16_are_those_that_mfu_is_computed_with(name: str, rate: float) -> None:
    assert GPUS[name].bfloat16 == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("name", "size"), MODAL.items())
def test_memory_is_what_nvidia_smi_reports(name: str, size: float) -> None:
    assert GPUS[name].memory == pytest.approx(size, rel=1e-3)


def test_cs336_has_the_a100_with_19_5_teraflops_in_float32() -> None:
    """Assignment 1, problem adamwAccounting (d)."""
    assert GPUS["a100-80g"].float32 == 19.5e12


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_lower_precision_is_not_slower(gpu) -> None:
    rates = [rate for rate in (gpu.float32, gpu.tf32, gpu.bfloat16) if rate is not None]
    assert rates == sorted(rates)
    assert (gpu.tf32 is None) == (gpu.bfloat16 is None)  # both came with Ampere
    assert 6e9 < gpu.memory < 200e9


@pytest.mark.parametrize(
    ("name", "near"),
    [("a100", "a100-40g or a100-80g"), ("RTX 4090", "rtx-4090"), ("4090", "rtx-4090"), ("b20", "b200")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"unknown machine '{name}'; did you mean ") as refused:
        find_gpu(name)
    assert f"mean {near}" in str(refused.value)


@pytest.mark.parametrize("name", ["", "toaster", "🤖" * 100])
def test_nonsense_lists_what_is_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"\(known: a100-40g, .*v100-32g; describe any other by --memory"):
        find_gpu(name)


def test_the_help_names_all_of_them() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"`--machine`[^\n]*", text)
    assert all(name in entry for name in GPUS)


def test_the_documentation_has_their_figures() -> None:
    page = (DOCS / "explanation" / "estimates.md").read_text(encoding="utf-8")
    for name, gpu in GPUS.items():
        rates = (gpu.float32, gpu.tf32, gpu.bfloat16)
        cells = [f"`{name}`", f"{gpu.memory >> 20:,}", *("" if rate is None else f"{rate / 1e12:g}" for rate in rates)]
        assert f"| {' | '.join([*cells, gpu.source.removeprefix('NVIDIA, ')])} |".replace("|  |", "| |") in page, name


def test_the_settings_accept_any_text() -> None:
    """The names are checked where the machine is looked up, with suggestions."""
    assert HardwareSettings(machine="toaster").describes
