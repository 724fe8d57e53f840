"""Training runs in processes of their own, killed at random moments and resumed."""

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch

from shared.lm import load_model_folder
from trainer.checkpoints.checkpoint import load_newest_checkpoint
from trainer.checkpoints.folders import list_checkpoints
from trainer.components.parent import starting_from
from trainer.settings.train import TrainSettings
from trainer.training.trainer import train

Change = Callable[..., TrainSettings]

# Imports torch once, and forks a process for each run whose pickled settings it reads.
_SERVER = """
import os, pickle, sys
import torch
from trainer.training.trainer import train
torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    settings = pickle.loads(bytes.fromhex(line))
    pid = os.fork()
    if not pid:
        train(settings)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Runs:
    """Starts runs, and kills them."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def run(self, settings: TrainSettings, kill_after: float | None = None) -> int:
        """The exit status of a run, which ends after so many seconds by SIGKILL; -9 where it did."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(pickle.dumps(settings).hex() + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):  # it was over already
                os.kill(pid, signal.SIGKILL)
        return int(self._server.stdout.readline())

    def close(self) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.close()


def kill_and_resume(
    runs: Runs,
    settings: TrainSettings,
    change: Change,
    *,
    kills: int,
    caplog: pytest.LogCaptureFixture,
    **changes: object,
) -> None:
    """A run that is killed is in the end the one that is not: weights, losses, evaluations, samples, order of data."""
    settings = change(settings, keep=2, keep_best=True, **changes)
    whole = change(settings, output=settings.output.with_name("whole"))
    begin = time.monotonic()
    assert runs.run(whole) == 0
    duration = time.monotonic() - begin
    draw = random.Random(0)
    statuses, checkpoints = [], settings.output / "checkpoints"
    while statuses.count(-9) < kills:
        some = bool(list_checkpoints(checkpoints))
        again = change(settings, resume=some, overwrite=not some)
        statuses.append(runs.run(again, kill_after=draw.uniform(0.2, 1.5) / kills * duration))
        if list_checkpoints(checkpoints):
            load_newest_checkpoint(checkpoints)
        if statuses[-1] == 0:  # it was quicker than the one whose time was taken: once more from the start
            duration *= 0.7
            shutil.rmtree(settings.output)
    assert "damaged" not in caplog.text
    assert runs.run(change(settings, resume=bool(list_checkpoints(checkpoints)))) == 0
    ours, theirs = (load_model_folder(s.output / "model").model.state_dict() for s in (settings, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert lasting_metrics(settings) == lasting_metrics(whole)


def lasting_metrics(settings: TrainSettings) -> list[dict[str, object]]:
    """The records, without what depends on the clock."""
    lines = (settings.output / "metrics.jsonl").read_text().splitlines()
    clock = ("seconds", "tokens_per_second")
    return [{name: value for name, value in json.loads(line).items() if name not in clock} for line in lines]


@pytest.mark.slow
def test_a_killed_run_is_the_uninterrupted_one_to_the_bit(
    runs: Runs, settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """B84, B85, B87: accumulation, dropout and Muon, over several epochs, with a checkpoint at every other step."""
    options = {"total_batch_size": 12, "dropout": 0.2, "optimizer": "muon", "context_length": 64}
    intervals = {"checkpoint_interval": 2, "eval_interval": 7, "sample_interval": 9}
    kill_and_resume(runs, settings, change, kills=3, caplog=caplog, max_steps=60, **options, **intervals)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [{}, {"lora_rank": 4}], ids=["all weights", "LoRA"])
def test_a_killed_run_that_started_from_a_folder(
    lora: dict[str, int], runs: Runs, settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    parent = train(change(settings, output=settings.output.with_name("parent")))
    started = starting_from(settings, parent)
    options = {"dropout": 0.2, "checkpoint_interval": 2, "eval_interval": 7}
    kill_and_resume(runs, started, change, kills=6, caplog=caplog, max_steps=60, **options, **lora)


@pytest.mark.slow
def test_twenty_kills_with_a_model_that_takes_long_to_save(
    runs: Runs, settings: TrainSettings, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """B87: 8 MB of weights, saved at every step, so that most kills meet a save; each time a checkpoint is intact."""
    shape = {"d_model": 256, "num_layers": 3, "num_heads": 4, "d_ff": 384, "dropout": 0.1}
    intervals = {"checkpoint_interval": 1, "eval_interval": 50}
    kill_and_resume(runs, settings, change, kills=20, caplog=caplog, max_steps=150, **shape, **intervals)
