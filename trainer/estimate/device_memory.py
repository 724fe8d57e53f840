"""How much memory a device of this machine, or the container that the process runs in, still has."""

import os

import torch

from shared.system.memory import free_memory, resident_memory


def available_memory(device: torch.device) -> int:
    """Bytes that this process of a run may take on a device, what it holds already included.

    On the CPU: what psutil calls available, or what the limits of the process's control groups leave where that is
    less, divided among the processes that torchrun started on this machine.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    own = resident_memory()
    return own + free_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
