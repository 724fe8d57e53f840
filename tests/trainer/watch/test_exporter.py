"""What `watch` exports of runs, read by Prometheus' own client."""

import asyncio
import math
import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.trainer.report.test_page import make_run
from trainer.runs.metrics import MetricsFile
from trainer.watch.exporter import Exporter
from trainer.watch.hub import Hub
from trainer.watch.runs import WatchedRuns
from trainer.watch.server import watch_app

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


def figures(exporter: Exporter) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    text = asyncio.run(exporter.text()).decode()
    return {
        (sample.name.removeprefix("ownlm_train_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_last_figures_of_every_run(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", end=2.0)
    odd = 'q"uo\\te\nd'
    make_run(tmp_path / "runs" / odd, end=3.0)
    exporter = Exporter([tmp_path / "runs", tmp_path / "later"])
    before = figures(exporter)
    assert before["state", odd, "running"] == 0
    file = MetricsFile(tmp_path / "runs" / "a" / "metrics.jsonl")
    step = int(before["step", "a"]) + 5
    file.write(step=step, tokens=123, seconds=1.5, loss=2.5, learning_rate=1e-05, tokens_per_second=77.0)
    after = figures(exporter)
    assert (after["step", "a"], after["loss", "a"], after["learning_rate", "a"]) == (step, 2.5, 1e-05)
    assert after["tokens_per_second", "a"] == 77
    assert after["loss", odd] == before["loss", odd]
    file.write(step=step + 1, tokens=124, seconds=1.6, loss=math.nan)
    assert math.isnan(figures(exporter)["loss", "a"])
    file.rewind(step)  # as a run that returns to a checkpoint
    assert figures(exporter)["loss", "a"] == 2.5
    assert sum(value for key, value in after.items() if key[:2] == ("state", "a")) == 1


def test_a_run_at_work_and_killed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", end=2.0)
    exporter = Exporter([folder])
    holder = subprocess.Popen([sys.executable, "-c", HOLD, folder / ".lock"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        assert figures(exporter)["resident_memory_bytes", "run"] > 1 << 20
    finally:
        holder.kill()
        holder.communicate()
    killed = figures(exporter)
    assert ("resident_memory_bytes", "run") not in killed
    assert killed["loss", "run"] > 0


def test_a_run_is_as_new_as_its_last_step_start_or_end(tmp_path: Path) -> None:
    """Alerts about ended runs stop by it: one that fails before its first step, or when it is resumed, is a new one."""
    folder = make_run(tmp_path / "run", end=2.0)
    exporter = Exporter([folder])
    for metrics, record in ((2000, 1000), (1000, 3000)):
        os.utime(folder / "metrics.jsonl", (metrics, metrics))
        os.utime(folder / "run.json", (record, record))
        assert figures(exporter)["updated_timestamp_seconds", "run"] == max(metrics, record)
    (folder / "metrics.jsonl").unlink()
    assert figures(exporter)["updated_timestamp_seconds", "run"] == 3000


def test_a_folder_that_disappears(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", end=2.0)
    exporter = Exporter([tmp_path])
    assert ("loss", "run") in figures(exporter)
    folder.rename(tmp_path.parent / "gone")
    assert figures(exporter) == {}


def test_prometheus_may_scrape_and_other_names_may_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", end=2.0)
    client = TestClient(
        watch_app(Hub(WatchedRuns([folder])), Exporter([folder]), "watch"), base_url="http://watch:8002"
    )
    response = client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'ownlm_train_loss{run="run"}' in response.text
    assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 421
