"""Which device the model runs on, and in which dtype."""

from collections.abc import Iterable

import structlog

from services.inference.engine.ipc import EngineConfig
from shared.lm.gpu import has_cuda_driver, why_no_gpu

_log = structlog.get_logger("ownlm.engine")


class DeviceError(ValueError):
    """The requested device does not exist, or does not support what was requested."""


def select_device(name: str) -> str:
    """Return the device that `OWNLM_DEVICE` means: "cpu", "cuda" or "cuda:1".

    Raises:
        DeviceError: It does not exist.
    """
    if name == "cpu" or (name == "auto" and not has_cuda_driver()):
        return "cpu"
    import torch

    reason = why_no_gpu()
    if name == "auto":
        if reason is not None:
            _log.warning("the model runs on the CPU, though there is a GPU's driver", reason=reason)
        return "cuda" if reason is None else "cpu"
    if reason is not None:
        raise DeviceError(f"OWNLM_DEVICE is {name}, but no GPU can be used ({reason}); try cpu")
    if (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"OWNLM_DEVICE is {name}, but torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return name


def select_dtype(config: EngineConfig, default: str, supported: Iterable[str]) -> str:
    """Return the dtype of the weights.

    Raises:
        DeviceError: The device does not support it.
    """
    dtype = default if config.dtype == "auto" else config.dtype
    if dtype not in supported:
        raise DeviceError(f"OWNLM_DTYPE is {dtype}, but this device supports only {', '.join(supported)}")
    return dtype
