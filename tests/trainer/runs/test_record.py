"""`run.json`: where a run's figures come from."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.runs.record import git_state, read_record, valid_record
from trainer.settings.train import TrainSettings, to_table
from trainer.training.trainer import train

ROOT = Path(__file__).resolve().parents[3]


def record(settings: TrainSettings) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((settings.output / "run.json").read_text())
    return content


def test_a_run_records_what_it_was_made_from(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    train(settings)
    written = record(settings)
    assert written["config"] == to_table(settings) | {"data_order": "epochs"}  # which the data decides
    assert (
        written["data"]["train"]["hash"] == json.loads((settings.data / "train.json").read_text())["shards"][0]["hash"]
    )
    (start,) = written["starts"]
    assert 0 <= (datetime.now(UTC) - datetime.fromisoformat(start["time"])).total_seconds() < 600
    assert (start["step"], start["processes"]) == (0, 1)
    assert torch.__version__.startswith(start["versions"]["torch"])  # wheels of one version differ in "+cu130"
    assert start["versions"]["python"] == platform.python_version()
    assert start["machine"]["name"] == platform.node()
    assert Path(sys.executable).name in start["command"]


def test_going_on_is_appended_and_beginning_anew_is_not(
    settings: TrainSettings, change: Callable[..., TrainSettings]
) -> None:
    train(settings)
    train(change(settings, resume=True, max_steps=12))
    assert [start["step"] for start in record(settings)["starts"]] == [0, 10]
    assert record(settings)["config"]["max_steps"] == 12
    train(change(settings, overwrite=True))
    assert [start["step"] for start in record(settings)["starts"]] == [0]


def test_the_revision_is_that_of_the_code_and_notes_changes(tmp_path: Path) -> None:
    """In a checkout made for it, by git's own word; the working directory plays no part."""
    package = tmp_path / "trainer"
    (package / "runs").mkdir(parents=True)
    for name in ("__init__.py", "runs/__init__.py", "runs/record.py", "runs/json_types.py"):
        shutil.copy(ROOT / "trainer" / name, package / name)
    shutil.copytree(ROOT / "shared", tmp_path / "shared", ignore=shutil.ignore_patterns("__pycache__"))

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def state() -> Any:
        code = "import json; from trainer.runs.record import git_state; print(json.dumps(git_state()))"
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")
        return json.loads(done.stdout)

    assert state() is None
    git("init", "-q")
    assert state() is None  # another project's checkout, as far as git knows
    git("add", "trainer")
    git("commit", "-q", "-m", "first")
    assert state() == {"revision": git("rev-parse", "HEAD"), "dirty": False}
    (package / "__init__.py").write_text("# changed\n")
    assert state() == {"revision": git("rev-parse", "HEAD"), "dirty": True}


def test_without_git_there_is_no_revision_and_no_error(monkeypatch: Any) -> None:
    git_state.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert git_state() is None
    git_state.cache_clear()


def test_a_damaged_record_is_an_empty_one(tmp_path: Path) -> None:
    assert read_record(tmp_path / "none") == {"starts": []}
    (tmp_path / "run.json").write_text('{"starts": [')
    assert read_record(tmp_path / "run.json") == {"starts": []}
    for content in ('{"starts": 4}', '{"starts": [4]}', '{"starts": [{}, {"time": 3}]}', '{"data": "tokens"}', "[]"):
        (tmp_path / "run.json").write_text(content)
        assert read_record(tmp_path / "run.json")["starts"] == []
        notes: list[str] = []
        assert valid_record(tmp_path / "run.json", notes) == {"starts": []}, "readers look into these"
        assert notes


@pytest.mark.case("D49")
def test_a_run_goes_on_though_its_record_is_odd(settings: TrainSettings, change: Callable[..., TrainSettings]) -> None:
    train(settings)
    (settings.output / "run.json").write_text('{"starts": [{}, 4, {"time": "never"}]}')
    train(change(settings, resume=True, max_steps=12))
    assert [start["step"] for start in record(settings)["starts"]] == [10]
