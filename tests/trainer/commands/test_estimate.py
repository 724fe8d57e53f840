"""What `estimate` prints, and what it refuses."""

import json
from typing import Any

import pytest
import torch

from trainer.commands.estimate import EstimateSettings, estimate
from trainer.errors import UsageError
from trainer.settings.hardware import HardwareSettings
from trainer.settings.train import MachineSettings, ModelSettings, OptimizationSettings

XL = ModelSettings(
    d_model=1_600,
    num_layers=48,
    num_heads=25,
    d_ff=6_400,
    context_length=1_024,
    qk_norm=False,
    tie_embeddings=False,
)
STUDY = OptimizationSettings(max_steps=400_000, batch_size=1, total_batch_size=1_024)
A100 = HardwareSettings(machine="a100-80g", utilization=0.5, price_per_hour=2.0)


def study(hardware: HardwareSettings, device: str = "auto") -> EstimateSettings:
    return EstimateSettings(
        model=XL, optimization=STUDY, machine=MachineSettings(device=device, dtype="float32"), hardware=hardware
    )


def found(capsys: pytest.CaptureFixture[str], settings: EstimateSettings, **options: Any) -> Any:
    estimate(settings=settings, vocab_size=50_257, json=True, **options)
    return json.loads(capsys.readouterr().out)


def test_the_study_of_cs336(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, study(A100), formula=True)
    assert table["parameters"]["total"] == 2_127_057_600
    assert table["flops"]["forward"]["total"] == 4_513_336_524_800
    assert table["flops"]["optimizer_step"] == 14 * 2_127_057_600
    assert table["machine"]["data_sheet"]["float32"] == 19.5e12
    assert table["formula"]["largest_batch"] == 3
    seconds = table["run"]["seconds"]
    assert seconds == pytest.approx(18.02 * 365.25 * 86_400, rel=1e-3)
    assert table["run"]["dollars"] == pytest.approx(2 * seconds / 3_600, abs=0.01)


def test_tables_have_exact_numbers_and_every_formula(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    estimate(settings=study(A100), vocab_size=50_257, sequence_length=16_384, formula=True)
    text = capsys.readouterr().out
    for expected in (
        "2,127,057,600 (2.13 B)",
        "149,522,795,724,800 (149.52 T)",
        "6,583.6 days (18.0 years), 316,011.39 dollars",
        "A100 data sheet: TFLOP/s 19.5 in float32",
        "4*B*T*(L*(2*T*h + 8*d + 2*f) + 2*V + d) + 16*P",
        "15,517,753,344*B + 34,032,921,600",
        "In 80.00 GiB: B <= (85,899,345,920 - 34,032,921,600) / 15,517,753,344 = 3.34, so B = 3",
    ):
        assert expected in " ".join(text.split()), expected


def test_a_model_larger_than_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    small = HardwareSettings(machine="rtx-2060")
    assert found(capsys, study(small))["largest_batch_size"] == 0
    estimate(settings=study(small), vocab_size=50_257, formula=True)
    text = capsys.readouterr().out
    assert "│ largest batch_size that fits │ none │" in " ".join(text.split())
    assert "so none fits" in " ".join(text.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_is_not_known_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    table = found(capsys, study(HardwareSettings(memory="80G"), device="cuda"))
    assert (table["speed"], table["run"]["seconds"], table["run"]["dollars"]) == (None, None, None)
    assert table["largest_batch_size"] == 6
    table = found(capsys, study(HardwareSettings(peak_flops=1e12), device="cuda"))
    assert (table["memory"]["available"], table["largest_batch_size"]) == (None, None)
    estimate(settings=study(HardwareSettings(memory="80G"), device="cuda"), vocab_size=50_257)
    assert "give --peak-flops" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--price-per-hour needs the time of the run: give --peak-flops as well"):
        found(capsys, study(HardwareSettings(memory="80G", price_per_hour=2.0), device="cuda"))


def test_comparison_counts_the_components_of_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Shares of GPT-2 XL as CS336's handout asks for them: 66.9 % in the feed-forward layers."""
    estimate(compare="gpt2")
    text = " ".join(capsys.readouterr().out.split())
    assert "│ xl │ feed-forward │ 3,019,898,880,000 │ 66.9% │" in text
    assert "│ small │ forward pass │" in text
    assert "│ xl │ AdamW's step │ 29,778,806,400 (29.78 B) │" in text


@pytest.mark.parametrize(
    ("hardware", "options", "message"),
    [
        (A100, {"measure": True}, "--measure takes steps on one device of this machine"),
        (HardwareSettings(devices=2), {"measure": True}, "--measure takes steps on one device of this machine"),
        (A100, {"compare": "gpt2"}, "--compare counts operations only"),
        (HardwareSettings(), {"compare": "gpt2", "formula": True}, "--compare counts operations only"),
        (HardwareSettings(devices=1_025), {}, "a step of 1024 windows .* cannot be shared by 1025 processes"),
        (HardwareSettings(), {"tokens": 0}, "--tokens must be from 1 to"),
        (HardwareSettings(), {"tokens": 10**400}, "--tokens must be from 1 to"),
    ],
)
def test_options_that_contradict_each_other(hardware: HardwareSettings, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        estimate(settings=study(hardware), vocab_size=50_257, **options)
