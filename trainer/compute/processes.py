"""Several processes that train one model together, as `torchrun` starts them; no effect with one process.

Each process has a rank; only rank 0 logs and writes files. Decisions that must be the same everywhere (divergence, when
to stop) are based on numbers summed over all processes.
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from shared.system.cpu_count import available_processors
from trainer.components.loss import IGNORED
from trainer.compute.device import Device, choose_device, has_gpu
from trainer.compute.launch import rank_and_count
from trainer.compute.threads import prepare_threads
from trainer.console.signals import STOP_SIGNALS, StopRequest
from trainer.errors import TrainerError, UsageError
from trainer.settings.train import MachineSettings, TrainSettings

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=10)  # of collectives
_BARRIER_TIMEOUT = timedelta(days=1)  # meanwhile files are copied, perhaps those of a terabyte of text
# Where all processes fail alike, seconds that the others give rank 0 to report it.
_HEAD_START = 0.5


class LostProcessError(TrainerError):
    """Another process of the run ended or stopped answering."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: This one's number, from 0.
        count: How many there are.
        launcher: Id of the process that started this one; None if it need not be watched.
        barriers: The process group of barriers; None stands for that of all else.
    """

    rank: int = 0
    count: int = 1
    launcher: int | None = None
    barriers: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the one that logs and writes files."""
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """Whether this is the first one of its machine."""
        return self.count == 1 or os.environ.get("LOCAL_RANK", str(self.rank)) == "0"

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """This process's share of a step's windows, which every process has in full.

        All shares are equally large, since the processes synchronize in every pass: where the windows do not divide
        evenly, some processes get an additional one whose targets are not scored.

        Args:
            inputs: int64 [windows, length].
            targets: int64 [windows, length].
        """
        if self.count == 1:
            return inputs, targets
        mine, my_targets = inputs.tensor_split(self.count)[self.rank], targets.tensor_split(self.count)[self.rank]
        if len(mine) * self.count >= len(inputs):
            return mine, my_targets
        return torch.cat([mine, inputs[:1]]), torch.cat([my_targets, torch.full_like(targets[:1], IGNORED)])

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """The values summed over all processes, in float64: the same bits in each of them."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def gather(self, value: float) -> list[float]:
        """The value of each process, by rank."""
        return self.all_reduce([value if rank == self.rank else 0.0 for rank in range(self.count)])

    def barrier(self) -> None:
        """Return when all processes have called this, however long some of them copy files."""
        if self.count > 1:
            dist.all_reduce(torch.zeros(1), group=self.barriers)  # dist.barrier takes a GPU where there is one

    def agree(self, values: Sequence[float], stop: StopRequest | None) -> tuple[list[float], int | None]:
        """`all_reduce`, and the signal to stop that any of the processes has received, in one exchange.

        The end of the launcher counts as SIGTERM: nothing else would end this run.
        """
        stop_signal = None if stop is None else stop.signal_number
        if self.count == 1:
            return list(values), stop_signal
        if self.launcher is not None and os.getppid() != self.launcher:
            stop_signal = signal.SIGTERM
        sums = self.all_reduce([*values, *(float(stop_signal == number) for number in STOP_SIGNALS)])
        noted = (number for number, votes in zip(STOP_SIGNALS, sums[len(values) :], strict=True) if votes)
        return sums[: len(values)], next(noted, None)

    def seed_step(self, seed: int, step: int) -> None:
        """Seed torch's generators from (seed, step, rank), so that dropout differs between processes.

        With one process the generators stay as they are: their state is in its checkpoints.
        """
        if self.count > 1:
            torch.manual_seed(int(np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)[0] >> 1))


ONE_PROCESS = Processes()
"""Training in this process alone."""


def check_batch(settings: TrainSettings, processes: Processes) -> None:
    """Check that the windows of every step can be shared among the processes, and that none is larger than a full one.

    Raises:
        UsageError: there are fewer windows than processes, or an early step has more tokens than a full one.
    """
    windows, count = settings.total_batch_size, processes.count
    largest = max(settings.shapes.stages, key=lambda stage: stage.tokens)
    if largest.tokens > settings.tokens_per_step:
        raise UsageError(
            f"--batch-schedule: {largest.windows} windows of {largest.length} tokens are more than the "
            f"{settings.tokens_per_step} tokens of a full step; lower it, or raise --total-batch-size"
        )
    fewest = min(stage.windows for stage in settings.shapes.stages)
    if fewest < count:
        name = "--total-batch-size" if fewest == windows else "--batch-schedule"
        others = ", else --batch-size" if fewest == windows else ""
        raise UsageError(
            f"a step of {fewest} windows ({name}{others}) cannot be shared by {count} processes; "
            f"set {name} to {count} or more, or start at most {fewest} processes"
        )
    if windows % count:
        logger.warning(
            "the %d windows of a step do not divide evenly among %d processes, so some will wait for others; "
            "--total-batch-size %d would",
            *(windows, count, windows + -windows % count),
        )


@contextmanager
def join_processes(settings: MachineSettings, d_model: int = 0) -> Iterator[tuple[Processes, Device]]:
    """Join the processes that `torchrun` started, and leave them at the end.

    If processes fail, the first one to fail reports the reason; the others exit silently.

    Args:
        settings: Which device, in which precision.
        d_model: See `choose_device`.

    Yields:
        The processes, and this one's device: the GPU of its rank on the machine, where they train on GPUs.

    Raises:
        UsageError: the device cannot be used, or there are more processes on this machine than GPUs.
        LostProcessError: another process ended or did not answer for ten minutes.
    """
    rank, count = rank_and_count()
    prepare_threads(settings.threads)
    if count == 1:
        yield ONE_PROCESS, choose_device(settings.device, settings.dtype, d_model=d_model)
        return
    processes = Processes(rank, count, os.getppid())
    store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
    try:
        if settings.threads is None:
            _divide_threads()
        device = choose_device(_device_of_rank(settings.device), settings.dtype, d_model=d_model)
        backend = "cpu:gloo,cuda:nccl" if device.torch_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=processes.rank, world_size=count, timeout=_TIMEOUT)
        yield replace(processes, barriers=dist.new_group(timeout=_BARRIER_TIMEOUT, backend="gloo")), device
        # An object in a reference cycle that still holds the group, such as a finished run, would end the group's
        # threads only while the interpreter exits, which now and then aborts the process.
        gc.collect()
        dist.destroy_process_group()
    except Exception as error:
        is_lost = _is_lost_connection(error)
        if not (is_lost or processes.is_first):
            time.sleep(_HEAD_START)
        if not _fails_first(store, processes):
            logging.disable(logging.CRITICAL)
        elif is_lost:
            raise LostProcessError(
                f"process {processes.rank} (of 0 to {count - 1}) lost another process, which was killed or did not "
                f"answer for {_TIMEOUT.total_seconds() / 60:.0f} minutes; torchrun's summary names it. Earlier "
                "checkpoints are intact: continue with --resume"
            ) from error
        elif not processes.is_first:
            error.add_note(f"(process {processes.rank} of 0 to {count - 1})")
        raise


def _divide_threads() -> None:
    """Share the cores among the processes of this machine; torchrun sets OMP_NUM_THREADS to 1."""
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        torch.set_num_threads(max(1, available_processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _device_of_rank(name: str) -> str:
    """The device of this process for the name in the settings.

    Raises:
        UsageError: there is none for this process.
    """
    if name == "auto":
        name = "cuda" if has_gpu() else "cpu"
    if name not in {"cpu", "cuda"}:
        raise UsageError(
            f"device {name!r} cannot be shared by several processes; use `--device cuda` (each takes the GPU of its "
            "rank on the machine) or `--device cpu`"
        )
    if name == "cpu":
        return name
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= gpus:
        raise UsageError(
            f"process {local_rank} of this machine has no GPU: there are {gpus}; start torchrun with "
            f"--nproc-per-node {gpus or 1}, or use `--device cpu`"
        )
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def _fails_first(store: Store, processes: Processes) -> bool:
    """Whether this is the first process to fail."""
    if os.getppid() != processes.launcher:  # which held the store
        return processes.is_first
    try:
        return store.add("ownlm/failed", 1) == 1
    except RuntimeError:
        return True


def _is_lost_connection(error: Exception) -> bool:
    """Whether a collective failed because a peer is gone. gloo raises a RuntimeError, NCCL a DistError."""
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error).lower())
