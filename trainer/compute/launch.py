"""The environment variables that `torchrun` sets. Free of torch, which the command line imports later."""

import os

from trainer.errors import UsageError


def rank_and_count() -> tuple[int, int]:
    """This process's number among those of a run, from 0, and how many there are; 0 and 1 without torchrun.

    Some schedulers set WORLD_SIZE for every job, so RANK decides.
    """
    if "RANK" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))


def check_command(command: str | None) -> None:
    """Refuse several processes for a command that cannot use them.

    Raises:
        UsageError: each process would do the same work and write the same files.
    """
    if rank_and_count()[1] > 1 and command != "train":
        raise UsageError("torchrun works with `train` only; start other commands without it")
