"""What becomes of a run of several processes when one of them fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.runs_in_processes import FAULT_STEP, Job, torchrun
from trainer.checkpoints.checkpoint import load_newest_checkpoint
from trainer.settings.train import TrainSettings

pytestmark = pytest.mark.extended

_MINUTE = 60


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "the disk of this process is gone"),
        pytest.param("SIGKILL", "lost another process", marks=pytest.mark.slow),
        pytest.param("exit", "lost another process", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_one_failing_process_ends_all(
    settings: TrainSettings,
    change: Callable[..., TrainSettings],
    tmp_path: Path,
    fault: str,
    reason: str,
    strategy: str,
) -> None:
    """B83: within a minute, with the reason said once, and the checkpoint before is whole."""
    settings = change(settings, max_steps=10_000, checkpoint_interval=1, keep=2, parallel=strategy)
    done = torchrun(tmp_path / "jobs", [Job(settings, fault=fault)])  # type: ignore[arg-type]
    assert time.time() - (settings.output / "notes-1").stat().st_mtime < _MINUTE  # since the last step before the fault
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert reason in done.stderr
    assert load_newest_checkpoint(settings.output / "checkpoints").run.step in {FAULT_STEP - 1, FAULT_STEP}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_torchrun_saves_and_leaves_no_process(token_folder: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C and SIGTERM reach the processes through torchrun; they see for themselves that it was killed."""
    log = tmp_path / "log"
    with log.open("w") as file:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
                *("-m", "trainer", "train", "--data", str(token_folder), "--output", str(tmp_path / "run")),
                *("--device", "cpu", "--max-steps", "1000000", "--d-model", "32", "--num-layers", "1"),
                *("--context-length", "16", "--batch-size", "2", "--eval-interval", "0", "--sample-interval", "0"),
                *("--sample-prompt", "the", "--log-interval", "1"),
            ],
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists() and (tmp_path / "run/metrics.jsonl").stat().st_size)
        workers = subprocess.run(
            ["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        launcher.send_signal(number)
        assert launcher.wait(_MINUTE) != 0
    assert len(workers) == 2
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert log.read_text().count("stopped after step") == 1
    assert load_newest_checkpoint(tmp_path / "run/checkpoints").run.step > 0


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for up to a minute."""
    end = time.monotonic() + _MINUTE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
