"""How many threads torch computes with on the CPU, and how they wait for each other."""

import os

import torch

from shared.system.cpu_count import available_processors
from shared.system.spinning import limit_spinning


def prepare_threads(requested: int | None) -> None:
    """Set the number of threads of this process.

    Args:
        requested: Their number; None takes OMP_NUM_THREADS, else a thread for each core that this process may use.
            torch by itself counts the cores of the machine, also where a container is limited to the time of a few.
    """
    limit_spinning()
    if requested is not None:
        torch.set_num_threads(requested)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_processors()))
