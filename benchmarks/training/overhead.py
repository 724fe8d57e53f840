"""What a run costs besides its steps: reading batches, writing metrics, and starting up."""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.training.contenders import Case, our_settings
from benchmarks.training.rounds import ROOT
from benchmarks.training.shape import CONTEXT
from trainer.runs.metrics import MetricsFile
from trainer.settings.train import to_toml
from trainer.tokens.dataset import open_training_data
from trainer.tokens.windows import ShuffledWindows

_REPEATS = 50


def data_and_logging(folder: Path, batch: int, results: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds for a step's batch and for a line of metrics, and their share of our eager step (a line in each step)."""
    windows = ShuffledWindows(open_training_data(folder).train, CONTEXT, 0)
    metrics = MetricsFile(folder.parent / "metrics.jsonl")
    metrics.rewind(0)
    read, write = [], []
    for step in range(_REPEATS):
        begin = time.perf_counter()
        windows.batch(step, batch)
        read.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        metrics.write(step=step, loss=9.2, learning_rate=1e-3, grad_norm=1.0, tokens=step, tokens_per_second=1e3)
        write.append(time.perf_counter() - begin)
    ours = next(r for r in results if r["trainer"] == "ownlm" and r["batch"] == batch and not r["compiled"])
    data, logging = statistics.median(read), statistics.median(write)
    step_seconds = batch * CONTEXT / ours["tokens_per_second"]
    return {"data_seconds": data, "logging_seconds": logging, "share": (data + logging) / step_seconds}


def start_up(folder: Path) -> float:
    """Seconds from calling `python -m trainer train` until its first step is in metrics.jsonl."""
    settings = our_settings(folder, Case(8, False, "float32"))
    config = folder.parent / "train.toml"
    config.write_text(to_toml(settings), encoding="utf-8")
    metrics = settings.output / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "trainer", "--config", str(config), "train", "--overwrite"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (metrics.exists() and metrics.read_text().strip()):
            time.sleep(0.02)
        seconds = time.perf_counter() - begin
        ended = process.poll()
        process.kill()
    if ended is not None:
        raise SystemExit(f"{command} ended with status {ended}")
    return seconds
