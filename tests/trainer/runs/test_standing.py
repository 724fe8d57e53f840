"""Where a run stands: at work, stopped, failed, killed."""

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import DivergedError, InterruptedRunError, TrainerError
from trainer.runs.folder import RunFolder
from trainer.runs.results import read_run
from trainer.runs.standing import Standing
from trainer.settings.train import TrainSettings
from trainer.training.trainer import Trainer, train

Change = Callable[..., TrainSettings]

_HOLDER = """
import sys
from pathlib import Path
from trainer.runs.folder import RunFolder
RunFolder(Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_run_that_was_killed_is_none_at_work(tmp_path: Path) -> None:
    """By the lock, which ends with the process that holds it, however that ends."""
    start = {"time": "2026-01-01T00:00:00+00:00", "step": 0, "command": "train", "git": None, "versions": {}}
    start |= {"machine": {"name": platform.node(), "cpu": "b", "cpus": 2}, "device": "cpu", "processes": 1, "end": None}
    (tmp_path / "run.json").write_text(json.dumps({"starts": [start]}))
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert read_run(tmp_path).standing == Standing("running")
        with pytest.raises(TrainerError, match="another process trains into"):
            RunFolder(tmp_path).lock()  # to ask has not taken the lock away
        process.send_signal(signal.SIGKILL)
    assert read_run(tmp_path).standing == Standing("killed")
    start["machine"]["name"] = "another"
    (tmp_path / "run.json").write_text(json.dumps({"starts": [start]}))
    assert read_run(tmp_path).standing == Standing("unknown"), "a copy: the run may be at work there"


def test_how_it_ended_is_recorded(settings: TrainSettings, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    train(change(settings, stop_after=3))
    assert read_run(settings.output).standing == Standing("stopped")
    train(change(settings, resume=True))
    assert read_run(settings.output).standing == Standing("finished")
    starts = json.loads((settings.output / "run.json").read_text())["starts"]
    assert [(start["end"]["how"], start["end"]["step"]) for start in starts] == [("stopped", 3), ("finished", 10)]

    for error, expected in (
        (InterruptedRunError("stopped after step 4", signal.SIGTERM), Standing("stopped", "SIGTERM")),
        (DivergedError("training diverged at step 4", 4), Standing("diverged", "training diverged at step 4")),
        (TrainerError("the disk is full"), Standing("failed", "the disk is full")),
        (ValueError("no such thing"), Standing("failed", "no such thing")),
    ):

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(Trainer, "_reach_the_end", fail)
        with pytest.raises(type(error)):
            train(change(settings, overwrite=True))
        assert read_run(settings.output).standing == expected


@pytest.mark.parametrize("content", ['{"starts": []}', "{", '{"starts": [{"end": {"how": "finished"}}]}'])
def test_without_a_record_it_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path).standing == Standing("unknown")
