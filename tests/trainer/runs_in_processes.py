"""What each process of `torchrun` does in the tests of several processes: a list of training runs, one after another.

Usage: runs_in_processes.py JOBS, a pickled list of `Job`.
"""

import logging
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from trainer.compute.device import choose_device
from trainer.compute.launch import rank_and_count
from trainer.compute.processes import Processes, join_processes
from trainer.errors import DivergedError, InterruptedRunError, TrainerError
from trainer.settings.train import MachineSettings, TrainSettings
from trainer.training.trainer import Trainer, new_trainer

FAULT_STEP = 2


@dataclass(frozen=True)
class Job:
    """A run.

    Attributes:
        settings: Its settings.
        start: A checkpoint to go on from.
        fault: What befalls the last process at step 2.
        bad_batches: Numbers of batches, from 0; what the model makes of the last process's share of them is multiplied.
        factor: By this.
    """

    settings: TrainSettings
    start: Path | None = None
    fault: Literal["SIGTERM", "SIGKILL", "exit", "error", "weight"] | None = None
    bad_batches: tuple[int, ...] = ()
    factor: float = math.nan


def torchrun(file: Path, jobs: list[Job], processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Do the jobs in several processes."""
    file.write_bytes(pickle.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), __file__, str(file)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def prepare(job: Job) -> None:
    """Put the checkpoint into the run's folder."""
    if job.start is not None:
        shutil.copytree(job.start, job.settings.output / "checkpoints" / job.start.name)


def run(job: Job, processes: Processes) -> None:
    """Take part in a run."""
    if processes.is_first:
        prepare(job)
    processes.barrier()
    machine, width = job.settings.machine, job.settings.model.d_model
    device = choose_device(machine.device, machine.dtype, d_model=width)
    trainer = new_trainer(job.settings, processes, device)
    if job.fault and processes.rank == processes.count - 1:
        after = trainer._after

        def after_with_fault(step, report):  # type: ignore[no-untyped-def]
            if step.number == FAULT_STEP:
                suffer(job.fault, trainer)
            after(step, report)

        trainer._after = after_with_fault  # type: ignore[method-assign]
    note_steps(trainer)
    if job.bad_batches and processes.rank == processes.count - 1:
        spoil(trainer, job)
    try:
        trainer.train()
    except InterruptedRunError:
        (job.settings.output / f"stopped-{processes.rank}-{trainer.state.step}").touch()
        if job.fault is None:
            raise
    except DivergedError as error:
        note(trainer, f"stopped at {error.step}")
        raise


def spoil(trainer: Trainer, job: Job) -> None:
    """Multiply the hidden states of the job's bad batches."""
    hidden = trainer.model.hidden

    def spoilt(inputs):  # type: ignore[no-untyped-def]
        batch = trainer.state.step + trainer.state.batches_left_out
        return hidden(inputs) * (job.factor if batch in job.bad_batches else 1.0)

    trainer.model.hidden = spoilt  # type: ignore[method-assign]


def note_steps(trainer: Trainer) -> None:
    """Write down each step that this process takes, and each time it goes back."""
    after, recover = trainer._after, trainer._recover

    def after_noted(step, report):  # type: ignore[no-untyped-def]
        note(trainer, f"{step.number}{' left out' if step.fault else ''}, loss {step.loss!r}")
        after(step, report)

    def recover_noted(error):  # type: ignore[no-untyped-def]
        recover(error)
        note(trainer, f"back to {trainer.state.step}")

    trainer._after, trainer._recover = after_noted, recover_noted  # type: ignore[method-assign]


def note(trainer: Trainer, line: str) -> None:
    """Add a line to what this process notes."""
    with (trainer.settings.output / f"notes-{trainer.processes.rank}").open("a") as file:
        file.write(line + "\n")


def suffer(fault: str | None, trainer: Trainer) -> None:
    """End this process, ask it to, or spoil a weight of its own, once."""
    if fault == "weight":
        if not trainer.state.rollbacks:
            next(trainer.model.parameters()).data[0, 0] = math.inf
        return
    if fault == "exit":
        os._exit(3)
    if fault == "error":
        raise TrainerError("the disk of this process is gone")
    os.kill(os.getpid(), signal.Signals[str(fault)])


def main() -> None:
    """Do what the file says."""
    jobs: list[Job] = pickle.loads(Path(sys.argv[1]).read_bytes())
    logging.basicConfig(level=logging.INFO if rank_and_count()[0] == 0 else logging.ERROR)
    try:
        take_part(jobs)
    except TrainerError as error:
        logging.getLogger().error("error: %s", error)
        sys.exit(1)


def take_part(jobs: list[Job]) -> None:
    """Take part in all runs."""
    torch.set_num_threads(1)
    with join_processes(MachineSettings(device="cpu")) as (processes, _):
        for job in jobs:
            run(job, processes)


if __name__ == "__main__":
    main()
