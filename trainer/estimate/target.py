"""The machine that a run is estimated for: this one, or one that is described."""

from dataclasses import dataclass

import torch

from trainer.compute.device import Device, choose_device
from trainer.errors import UsageError
from trainer.estimate.device_memory import available_memory
from trainer.estimate.gpus import Gpu, find_gpu
from trainer.settings.hardware import HardwareSettings
from trainer.settings.train import MachineSettings


@dataclass(frozen=True)
class Target:
    """The devices of a run, which need not exist here.

    Attributes:
        device: The kind of device and the precision of its matrix products.
        name: What people call it.
        here: Whether this machine has the device.
        memory: Bytes there are for a process of the run; None if that is not known.
        peak: Operations a second of its matrix products at most; None to measure them here.
        utilization: Share of them that training reaches; None for the usual one.
        devices: How many there are.
        gpu: Its data sheet, of a GPU by name.
    """

    device: Device
    name: str
    here: bool
    memory: int | None
    peak: float | None = None
    utilization: float | None = None
    devices: int = 1
    gpu: Gpu | None = None


def target_here(device: Device) -> Target:
    """A device of this machine as it is."""
    return Target(device, str(device), here=True, memory=available_memory(device.torch_device))


def choose_target(machine: MachineSettings, hardware: HardwareSettings, *, d_model: int) -> Target:
    """The target that the settings describe; what they leave open is that of this machine.

    Args:
        machine: Device and precision.
        hardware: What another machine has.
        d_model: See `choose_device`.

    Raises:
        UsageError: there is no such machine, or it has not the device or the precision asked for.
    """
    if hardware.machine is not None:
        return _named(find_gpu(hardware.machine), machine, hardware)
    if _is_absent(machine.device) and (hardware.memory is not None or hardware.peak_flops is not None):
        return _described(machine, hardware)
    try:
        device = choose_device(machine.device, machine.dtype, d_model=d_model)
    except UsageError as error:
        if not _is_absent(machine.device):
            raise
        raise UsageError(
            f"{error}; or describe another machine: --machine NAME, or --memory and --peak-flops"
        ) from error
    described = hardware.memory is not None or hardware.peak_flops is not None
    name = _as_described(device) if described else str(device)
    memory = hardware.memory_bytes or available_memory(device.torch_device)
    return Target(device, name, True, memory, hardware.peak_flops, hardware.utilization, hardware.devices)


def _named(gpu: Gpu, machine: MachineSettings, hardware: HardwareSettings) -> Target:
    if machine.device.partition(":")[0] not in {"auto", "cuda"}:
        raise UsageError(f"--machine {hardware.machine} is a GPU; omit --device {machine.device}")
    if machine.dtype == "bfloat16" and gpu.bfloat16 is None:
        raise UsageError(f"--machine {hardware.machine} has no bfloat16; use --dtype float32")
    dtype = torch.float32 if machine.dtype == "float32" or gpu.bfloat16 is None else torch.bfloat16
    peak = hardware.peak_flops or (gpu.float32 if dtype == torch.float32 else gpu.bfloat16)
    memory = hardware.memory_bytes or gpu.memory
    device = Device(torch.device("cuda"), dtype)
    name = f"{gpu.name}, {_precision(dtype)}"
    return Target(device, name, False, memory, peak, hardware.utilization, hardware.devices, gpu)


def _described(machine: MachineSettings, hardware: HardwareSettings) -> Target:
    """A GPU that this machine does not have."""
    kind = machine.device.partition(":")[0]
    if kind == "mps" and machine.dtype == "bfloat16":
        raise UsageError("device 'mps' does not support bfloat16; use `--dtype float32`")
    # By default as `train` computes on a GPU that has bfloat16.
    dtype = torch.float32 if kind == "mps" or machine.dtype == "float32" else torch.bfloat16
    device, memory = Device(torch.device(kind), dtype), hardware.memory_bytes
    figures = (hardware.peak_flops, hardware.utilization, hardware.devices)
    return Target(device, _as_described(device), False, memory, *figures)


def _is_absent(name: str) -> bool:
    """Whether this is a kind of GPU that torch does not find here."""
    kind = name.partition(":")[0]
    if kind == "cuda":
        return not torch.cuda.is_available()
    return kind == "mps" and not torch.backends.mps.is_available()


def _as_described(device: Device) -> str:
    return f"{device.torch_device.type} as described, {_precision(device.dtype)}"


def _precision(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
