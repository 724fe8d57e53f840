"""Where training runs and in which precision."""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from shared.lm.gpu import gpu_unavailable_reason, has_cuda_driver
from trainer.errors import UsageError

logger = logging.getLogger(__name__)

# On a CPU: 1.3 to 1.8 times the tokens per second from this width on, nothing at half of it (docs/lab/log.md).
_WIDE_ENOUGH_FOR_BFLOAT16 = 256


@dataclass(frozen=True)
class Device:
    """A device and the precision of its matrix products.

    Attributes:
        torch_device: The device.
        dtype: float32, or bfloat16 under autocast; weights are float32 either way.
    """

    torch_device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which forward passes run."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=self.dtype)

    def __str__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        if self.torch_device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.torch_device)} ({self.torch_device}), {precision}"
        threads = f" ({torch.get_num_threads()} threads)" if self.torch_device.type == "cpu" else ""
        return f"{self.torch_device}{threads}, {precision}"


def choose_device(name: str = "auto", dtype: str = "auto", *, d_model: int = 0) -> Device:
    """The device and precision with these names (see `MachineSettings`).

    Args:
        name: `auto` for the best one.
        dtype: `auto` for what is fastest on the device.
        d_model: The width of the model to train, which decides the precision on a CPU; 0 for float32 there.

    Raises:
        UsageError: there is no such device, or it has no bfloat16.
    """
    name = _best_device() if name == "auto" else name
    try:
        device = torch.zeros(1, device=name).device  # with its number, which "cuda" leaves open
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"device {name!r} is not available ({reason}); `--device cpu` always works") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)  # pinned memory, for one, is allocated for the current one
    has_bfloat16 = device.type == "cpu" or (
        device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    )
    if dtype == "bfloat16" and not has_bfloat16:
        raise UsageError(f"device {name!r} does not support bfloat16; use `--dtype float32`")
    fast_bfloat16 = has_bfloat16 and (
        device.type == "cuda" or (d_model >= _WIDE_ENOUGH_FOR_BFLOAT16 and _cpu_multiplies_bfloat16())
    )
    use_bfloat16 = dtype == "bfloat16" or (dtype == "auto" and fast_bfloat16)
    return Device(device, torch.bfloat16 if use_bfloat16 else torch.float32)


def compute_deterministically() -> None:
    """Use only deterministic kernels from here on. Call this before anything runs on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    torch.use_deterministic_algorithms(True)
    # Filling is for debugging, and slow.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it; without them it is slower than float32."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)  # missing in older versions of torch
    capabilities = get_capabilities() if get_capabilities is not None else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def has_gpu() -> bool:
    """Whether torch can use a CUDA device; logs the reason if not, where a driver is installed."""
    if torch.cuda.is_available():
        return True
    if has_cuda_driver():
        logger.warning("not using a GPU, although a driver is installed: %s", gpu_unavailable_reason())
    return False


def _best_device() -> str:
    if has_gpu():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
