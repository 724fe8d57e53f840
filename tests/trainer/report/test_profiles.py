"""Profiles on the page: of runs, and of jobs before them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.report.test_page import Elements, make_run
from trainer.errors import UsageError
from trainer.report.build import build_report
from trainer.report.figures import FigureFiles
from trainer.report.profiles import read_profiles
from trainer.runs.profile import Profile, write_profile
from trainer.runs.profile_text import profile_text

MEMORY = {"parameters": 4_000_000, "gradients": 0, "optimizer state": 8_000_000, "activations": 1_000_000}
MEMORY |= {"temporary": 0, "allocator": 0, "program": 200_000_000}


def job_content(job: str = "encode", unit: str = "bytes") -> dict[str, Any]:
    profile = Profile(job, unit)
    with profile.stage("read <b>", 3_000_000), profile.stage("count", 2_000_000):
        pass
    return profile.content(3_000_000)


def training_content(**changes: Any) -> dict[str, Any]:
    operator = {"name": "aten::mm", "calls": 7, "seconds": 0.25, "device_seconds": 0.0, "total_seconds": 0.5}
    more = {
        "device": "cpu (2 threads), float32",
        "processes": 1,
        "steps": 40,
        "warmup_steps": 5,
        "measured_steps": 32,
        "tokens_per_second": 1234.0,
        "flops_per_second": 3e9,
        "matmul_flops_per_second": 4e9,
        "utilization": 0.75,
        "device_peak_memory": None,
        "estimated_memory": MEMORY,
        "traced": "steps 21 to 23",
        "traced_steps": [21, 22, 23],
        "operators": [{**operator, "memory": 5_000_000, "share": 1.0}],
    }
    return job_content("train", "tokens") | more | changes


def page_of(tmp_path: Path, *folders: Path) -> Elements:
    page = tmp_path / "page.html"
    build_report(folders, page, files=FigureFiles(tmp_path / "page"), prompt=None, models=False, device="cpu")
    return Elements(page)


@pytest.mark.extended
def test_profiles_of_runs_and_of_other_jobs_are_shown(tmp_path: Path) -> None:
    run, plain = make_run(tmp_path / "first", end=2.0), make_run(tmp_path / "second", end=3.0)
    write_profile(run, training_content(), "")
    (tmp_path / "tokens").mkdir()
    write_profile(tmp_path / "tokens", job_content(), "")
    page = page_of(tmp_path, run, plain, tmp_path / "tokens")
    for text in ("1,234 tokens/s", "utilization 75.0%", "optimizer state 8", "steps 21 to 23", "aten::mm", "read <b>"):
        assert text in page.shown
    profiles = page.sections["profiles"]
    assert [profile["name"] for profile in profiles] == ["first", "tokens"]
    for profile in profiles:
        assert len(profile["shares"]) == len(profile["stages"]["rows"]) == 3
        assert sum(profile["shares"]) == pytest.approx(1, abs=1e-6)
    assert page_of(tmp_path, plain).sections["profiles"] == []


def test_a_page_may_be_about_profiles_alone(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    with pytest.raises(UsageError, match="tokens is not a run folder"):
        page_of(tmp_path, tmp_path / "tokens")
    write_profile(tmp_path / "tokens", job_content(), "")
    sections = page_of(tmp_path, tmp_path / "tokens").sections
    assert sections["about"]["title"] == "tokens"
    assert sections["comparison"]["rows"] == sections["made"] == []


@pytest.mark.parametrize("content", ["{", "[]", '{"stages": []}', "[" * 100_000])
def test_a_damaged_profile_is_noted(tmp_path: Path, content: str) -> None:
    (tmp_path / "profile.json").write_text(content)
    notes: list[str] = []
    assert read_profiles([tmp_path], [], notes) == []
    assert notes == [f"{tmp_path.name}: profile.json is damaged"]


@pytest.mark.parametrize("value", ["x", -1e300, [1], {"a": None}, None])
def test_a_value_of_another_type_never_stops_the_page(tmp_path: Path, value: Any) -> None:
    for key in training_content():
        (tmp_path / "profile.json").write_text(json.dumps(training_content(**{key: value})))
        read_profiles([tmp_path], [], [])


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    unmeasured = dict.fromkeys(("tokens_per_second", "flops_per_second", "matmul_flops_per_second", "utilization"))
    content = training_content(**unmeasured, traced="no step", traced_steps=[], operators=[], measured_steps=0)
    (tmp_path / "profile.json").write_text(json.dumps(content))
    (profile,) = read_profiles([tmp_path], [], [])
    assert not any("tokens/s" in line for line in profile.summary)
    assert profile_text(content).endswith("traced: no step\n")
    assert "GPU" not in profile_text(content)
    content = training_content(matmul_flops_per_second=None, utilization=None)
    assert "those traced: 1,234 tokens/s, 3.0 GFLOP/s\n" in profile_text(content)


def test_times_of_a_gpu_have_a_column() -> None:
    content = training_content(device_peak_memory=7_000_000)
    content["stages"][0]["device_seconds"] = content["operators"][0]["device_seconds"] = 1.5
    text = profile_text(content)
    assert "peak memory of tensors on the GPU: 7 MB" in text
    assert "1.500" in text
    assert "1,500.0" in text
