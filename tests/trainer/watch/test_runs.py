"""Watched runs: the messages for a page, put together again, are all that there is."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.report.test_page import make_run, write_outcomes
from trainer.report.description import curves_of
from trainer.runs.metrics import MetricsFile
from trainer.runs.results import read_run
from trainer.watch import runs as watched
from trainer.watch.runs import WatchedRuns


class Page:
    """What a page holds after the messages that it got."""

    def __init__(self, runs: WatchedRuns) -> None:
        self.runs = runs
        self.sections: dict[str, Any] = {}
        self.points: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, Any]:
        """Take what is new; the message."""
        message: dict[str, Any] = json.loads(self.runs.update() or b"{}")
        self.take(message)
        return message

    def take(self, message: dict[str, Any]) -> None:
        self.sections |= message.get("sections", {})
        for run, curves in message.get("points", {}).items():
            known = self.points.setdefault(run, {})
            for key, new in curves.items():
                curve = known.setdefault(key, {"from": 0, "steps": [], "values": []})
                for name in ("steps", "values"):
                    curve[name][new["from"] :] = new[name]
        self.points = {run: {key: c for key, c in curves.items() if c["steps"]} for run, curves in self.points.items()}

    def names(self) -> list[str]:
        return [run["name"] for run in self.sections["runs"]]


@pytest.fixture(autouse=True)
def describe_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_REST", 0)


def test_a_page_has_what_the_files_have_through_everything(tmp_path: Path) -> None:
    """From an empty place: the run appears, grows, returns to a checkpoint, is replaced by another one."""
    folder = tmp_path / "run"
    page = Page(WatchedRuns([folder]))
    page.look()
    assert page.sections["waiting"] == [str(folder)]
    assert page.sections["about"]["title"] == "0 training runs"
    make_run(folder, end=2.0, steps=1_500, finished=False)
    assert set(page.look()) == {"sections", "points"}
    assert (page.sections["waiting"], page.names()) == ([], ["run"])
    metrics = MetricsFile(folder / "metrics.jsonl")

    def check() -> None:
        page.look()
        assert page.points == {"0": curves_of(read_run(folder))}
        assert page.look() == {}
        late = Page(page.runs)
        late.take(json.loads(page.runs.whole()))
        assert (late.sections, late.points) == (page.sections, page.points)

    check()
    for step in range(1_501, 1_504):
        metrics.write(step=step, tokens=64 * step, seconds=2.0 * step, loss=1.5)
        check()
    metrics.rewind(1_200)
    metrics.write(step=1_200, tokens=64, seconds=5e3, event="rolled back from step 1503 to 1200: a spike")
    check()
    assert page.sections["events"][0]["items"] == [[1200, "rolled back from step 1503 to 1200: a spike"]]
    metrics.write(step=1_210, tokens=64, seconds=6e3, sample="Once upon")
    check()
    assert page.sections["samples"][0]["items"] == [[1210, "Once upon"]]
    shutil.rmtree(folder)
    make_run(folder, end=3.0, steps=7)
    check()
    assert page.sections["events"] == page.sections["samples"] == []


def test_one_more_record_is_a_small_message(tmp_path: Path) -> None:
    """Of the figures and the points of that step alone."""
    folder = make_run(tmp_path / "run", end=2.0, steps=2_900, finished=False)
    page = Page(WatchedRuns([folder]))
    page.look()
    MetricsFile(folder / "metrics.jsonl").write(step=2_901, tokens=1, seconds=1e4, loss=1.5)
    message = page.look()
    assert set(message["sections"]) == {"comparison"}
    assert {key: len(new["steps"]) for key, new in message["points"]["0"].items()} == dict.fromkeys(
        ("loss", "tokens", "seconds"), 1
    )


def test_a_sweep_and_its_later_runs_keep_their_looks(tmp_path: Path) -> None:
    make_run(tmp_path / "s" / "rate=0.01", end=2.0)
    page = Page(WatchedRuns([tmp_path / "s"]))
    page.look()
    make_run(tmp_path / "s" / "rate=0.001", end=1.0)
    (tmp_path / "s" / "no run").mkdir()
    write_outcomes(tmp_path / "s", {"rate=0.01": {"rate": 0.01}, "rate=0.001": {"rate": 0.001}}, notes=["Held: steps."])
    page.look()
    assert [(run["name"], run["run"]) for run in page.sections["runs"]] == [("rate=0.001", 1), ("rate=0.01", 0)]
    assert page.sections["notes"]["studies"] == ["Held: steps."]
    assert page.sections["comparison"]["rows"][0]["name"] == "rate=0.001"
    assert set(page.points) == {"0", "1"}
    shutil.rmtree(tmp_path / "s" / "rate=0.01")
    page.look()
    assert page.names() == ["rate=0.001"]


def test_a_folder_that_is_moved_away_and_back_is_sent_anew(tmp_path: Path) -> None:
    """Also to a page that was opened meanwhile."""
    folder = make_run(tmp_path / "run", end=2.0)
    make_run(tmp_path / "other", end=3.0)
    page = Page(WatchedRuns([tmp_path]))
    page.look()
    folder.rename(tmp_path.with_name("away"))
    page.look()
    late = Page(page.runs)
    late.take(json.loads(page.runs.whole()))
    assert page.names() == late.names() == ["other"]
    tmp_path.with_name("away").rename(folder)
    late.take(page.look())
    assert page.points == late.points
    assert page.points[str(page.sections["runs"][1]["run"])] == curves_of(read_run(folder))


def test_figures_of_now_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of the newest values, and the same as those of all."""
    monkeypatch.setattr(watched, "_REST", 1e9)
    monkeypatch.setattr("trainer.runs.standing.is_locked_by_process", lambda _: True)
    folder = make_run(tmp_path / "run", end=2.0, steps=3_000, finished=False)
    page = Page(WatchedRuns([folder]))
    page.look()
    MetricsFile(folder / "metrics.jsonl").write(step=3_001, tokens=1, seconds=1e4, loss=1.25)
    assert set(page.look()["sections"]) == {"now"}
    assert page.sections["now"][0]["figures"][0] == ["loss", "1.2500"]
    fresh = Page(WatchedRuns([folder]))
    fresh.look()
    assert fresh.sections["now"] == page.sections["now"]


def test_a_run_is_at_work_until_its_process_is_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", end=2.0, steps=20, finished=False)
    start = {"time": "2026-01-01T00:00:00+00:00", "step": 0, "command": "train", "git": None, "versions": {}}
    start |= {"machine": {"name": platform.node(), "cpu": "b", "cpus": 2}, "device": "cpu", "processes": 1, "end": None}
    (folder / "run.json").write_text(json.dumps({"tokens": 64 * 40, "starts": [start]}))
    page = Page(WatchedRuns([folder]))
    code = (
        "import sys; from pathlib import Path; from trainer.runs.folder import RunFolder;"
        "RunFolder(Path(sys.argv[1])).lock(); print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        page.look()
        (now,) = page.sections["now"]
        assert (now["state"], now["share"]) == ("running, step 20 of 40", 0.5)
        assert dict(now["figures"])["time left"] == "0:00:40", "2 seconds a step"
        assert page.sections["comparison"]["rows"][0]["cells"][-1] == "running, step 20 of 40, 0:00:40 left"
        process.kill()
    assert set(page.look()["sections"]) == {"now", "comparison"}
    assert page.sections["now"] == []
    assert page.sections["comparison"]["rows"][0]["cells"][-1] == "killed, step 20 of 40"


def test_describing_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures wait, points and events do not."""
    monkeypatch.setattr(watched, "_REST", 1e9)
    folder = make_run(tmp_path / "run", end=2.0, finished=False)
    page = Page(WatchedRuns([folder]))
    page.look()
    metrics = MetricsFile(folder / "metrics.jsonl")
    metrics.write(step=41, tokens=1, seconds=1e4, loss=1.5)
    message = page.look()
    assert message["sections"] == {}
    assert message["points"]["0"]["loss"]["values"] == [1.5]
    metrics.write(step=42, tokens=1, seconds=1e4, event="skipped: a spike")
    assert set(page.look()["sections"]) == {"comparison", "events"}


def test_names_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    import os

    make_run(tmp_path / os.fsdecode(b"no text \xff"), end=2.0)
    page = Page(WatchedRuns([tmp_path]))
    page.look()
    assert page.names() == ["no text ?"]
