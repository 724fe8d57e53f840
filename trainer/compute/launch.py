"""What `torchrun` tells a process in its environment. No torch here: the command line asks before it imports that."""

import os

from trainer.errors import UsageError


def rank_and_count() -> tuple[int, int]:
    """This process's number among those of a run, from 0, and how many there are; 0 and 1 without torchrun.

    Some schedulers set WORLD_SIZE for every job, so that alone says nothing.
    """
    if "RANK" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))


def check_command(command: str | None) -> None:
    """See whether several processes may run this command together.

    Raises:
        UsageError: each would do the same work and write the same files.
    """
    if rank_and_count()[1] > 1 and command != "train":
        raise UsageError("torchrun is for `train`; start every other command without it")
