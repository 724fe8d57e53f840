"""The workflow for macOS: GitHub's syntax, and commands that exist."""

import re
import shlex
from pathlib import Path

import yaml

from trainer.cli import app

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / "examples" / "macos-tests.yml").read_text())


def test_it_is_started_by_hand_and_may_only_read() -> None:
    assert WORKFLOW[True] == "workflow_dispatch"  # YAML reads `on` as a truth value
    assert WORKFLOW["permissions"] == {"contents": "read"}
    (job,) = WORKFLOW["jobs"].values()
    assert all("macos" in system for system in job["strategy"]["matrix"]["os"])
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_what_macos_has_not_is_skipped() -> None:
    """GitHub sets CI, where tests without a program fail; nothing installs Chromium and HAProxy here."""
    (job,) = WORKFLOW["jobs"].values()
    calls = [step["run"] for step in job["steps"] if "pytest" in step.get("run", "")]
    assert calls
    assert all(call.startswith("env -u CI ") for call in calls)


def test_its_commands_exist() -> None:
    (job,) = WORKFLOW["jobs"].values()
    lines = "\n".join(step.get("run", "") for step in job["steps"])
    commands = re.findall(r"python -m trainer (.*)", lines)
    assert len(commands) == 5
    for command in commands:
        app.parse_args(shlex.split(command), print_error=False, exit_on_error=False)
    assert ".venv/.dev" in lines
    assert "$(VENV)/.dev" in (ROOT / "Makefile").read_text()
