"""`sweep` and `report` as a person meets them: processes, signals, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TINY = [
    *("--d-model", 32, "--num-layers", 2, "--num-heads", 2, "--d-ff", 48, "--context-length", 16, "--batch-size", 4),
    *("--device", "cpu", "--threads", 1, "--log-interval", 1, "--eval-tokens", 200, "--sample-prompt", "the"),
    *("--warmup-steps", 2, "--checkpoint-interval", 50, "--sample-tokens", 5),
]


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    process = start(*arguments)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["learning_rat=1e-3,1e-2"], "unknown key 'learning_rat'. Did you mean 'learning_rate'?"),
        (["batch_size=4,0"], "--batch-size must be at least 1; got 0"),
        ([], "nothing varies"),
    ],
)
def test_wrong_usage_is_reported_before_anything_is_done(
    token_folder: Path, tmp_path: Path, grid: list[str], message: str
) -> None:
    axes = [argument for axis in grid for argument in ("--grid", axis)]
    done = run("sweep", "--data", token_folder, "--output", tmp_path / "s", *TINY, *axes)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists()


def wait_for(path: Path, steps: int) -> None:
    deadline = time.monotonic() + 240
    while not path.exists() or path.read_text().count("learning_rate") < steps:
        assert time.monotonic() < deadline, f"{path} does not grow"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_stopped_sweep_is_resumed(number: signal.Signals, token_folder: Path, tmp_path: Path) -> None:
    """In its second of three runs, which ends with the sweep and saves; the result is the uninterrupted one."""
    options = [*TINY, "--max-steps", 400, "--sample-interval", 0, "--grid", "seed=1,2,3"]
    command = ["sweep", "--data", token_folder, *options]
    output = tmp_path / "sweep"
    process = start(*command, "--output", output)
    wait_for(output / "seed=2" / "metrics.jsonl", 60)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), errors
    if number != signal.SIGKILL:
        assert "stopped in seed=2; 1 of 3 runs are done\n  resume with the same command" in errors
    done = run(*command, "--output", output)  # at once: it waits until the orphan has saved
    assert done.returncode == 0, done.stderr
    assert "run 1/3 seed=1: already finished" in done.stderr
    assert "run 2/3 seed=2: resuming" in done.stderr
    starts = json.loads((output / "seed=2" / "run.json").read_text())["starts"]
    assert [start["step"] > 0 for start in starts] == [False, True]
    whole = run(*command, "--output", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    name = Path("seed=2", "model", "model.safetensors")
    assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    page = run("report", output, "--output", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert "seed=3" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_crash_and_a_divergence_do_not_end_a_sweep(token_folder: Path, tmp_path: Path) -> None:
    """A prompt that the context cannot hold fails one run, a rate of 10,000 makes another diverge."""
    prompts = f'sample_prompt=["the", "{"the cat sees a dog " * 10}"]'
    grid = ["--grid", "learning_rate=0.01,1e4", "--grid", prompts]
    options = [*TINY, "--max-steps", 20, "--sample-interval", 10]
    done = run("sweep", "--data", token_folder, "--output", tmp_path / "s", *options, *grid)
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "s" / "sweep.json").read_text())["runs"]
    assert runs[0]["status"] == "finished"
    assert sorted(run["status"] for run in runs) == ["diverged", "failed", "failed", "finished"]
    assert all("need a prompt of at most" in run["reason"] for run in runs if run["status"] == "failed")
