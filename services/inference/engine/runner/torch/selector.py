"""Which operations run on a device: kernels, or plain torch."""

import os
import shutil
from importlib.util import find_spec

import torch

from services.inference.engine.runner.torch.operations import Operations

LEAST_CAPABILITY = (8, 0)
"""Of a GPU, for Triton (https://github.com/triton-lang/triton#compatibility)."""


def triton_unavailable_reason(device: torch.device) -> str | None:
    """The reason why steps on a device are plain torch, and slow; None where they are kernels."""
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"Triton needs a GPU of compute capability {LEAST_CAPABILITY}, and this one has {capability}"
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        return "Triton needs a C compiler (gcc or clang)"
    return None


def operations_for(device: torch.device) -> Operations:
    """The fastest operations for a device."""
    if triton_unavailable_reason(device) is None:
        from services.inference.engine.runner.torch.triton_operations import TritonOperations

        return TritonOperations()
    from services.inference.engine.runner.torch.plain_operations import PlainOperations

    return PlainOperations()
