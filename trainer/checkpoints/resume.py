"""Whether a run may be resumed from a checkpoint with the present settings, data and machine."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoints.checkpoint import Checkpoint
from trainer.checkpoints.inherited import Inherited
from trainer.compute.device import Device
from trainer.compute.processes import Processes
from trainer.errors import UsageError
from trainer.settings.fields import names_affecting
from trainer.settings.train import OptimizationSettings, TrainSettings, to_table

logger = logging.getLogger(__name__)

# Not folders, which may have moved: data is compared by its content, and a resumed run has the weights of its own.
_RESULT = names_affecting(TrainSettings, "result") - {"data", "init"}


def result_settings(settings: TrainSettings) -> dict[str, Any]:
    """The settings that decide the trained weights; together with the data's identity they identify a run."""
    return {name: value for name, value in to_table(settings).items() if name in _RESULT}


def check_same_run(checkpoint: Checkpoint, settings: TrainSettings, data: dict[str, Any], settings_file: Path) -> None:
    """Refuse to resume with other settings or data than the checkpoint's, or to stop at a step that is already done.

    Args:
        checkpoint: Where to resume.
        settings: The settings of this start.
        data: The identity of this start's data.
        settings_file: Holds the run's own settings, for the message.

    Raises:
        UsageError: names every difference, or both steps.
    """
    stop_after, step = settings.checkpoints.stop_after, checkpoint.run.step
    if stop_after is not None and stop_after <= step:
        raise UsageError(
            f"--stop-after ({stop_after}) must be above {step}, the step of the checkpoint {checkpoint.path}"
        )
    data_there = _flat(checkpoint.data)
    # A setting that did not exist when the run was started has the effect of its default; masks did not exist either.
    usual = OptimizationSettings().for_data(has_mask=False)
    defaults = result_settings(TrainSettings(data=settings.data, output=settings.output, optimization=usual))
    here, there = result_settings(settings) | _flat(data), defaults | checkpoint.settings | data_there
    differing = [name for name in here | data_there if here.get(name) != there.get(name)]
    if "max_steps" in differing:
        differing.remove("max_steps")
        logger.warning(
            "--max-steps was %s and is %s now: the learning rate follows the new schedule from here on",
            there["max_steps"],
            here["max_steps"],
        )
    if "dtype" in differing and here["dtype"] == _precision(checkpoint.machine):  # what `auto` was resolved to
        differing.remove("dtype")
    if differing:
        lines = "".join(f"\n  {name}: {there.get(name)} in the run, {here.get(name)} now" for name in differing)
        raise UsageError(
            f"cannot resume from {checkpoint.path} with settings or data that differ from the run's own (its settings "
            f"are in {settings_file}):{lines}"
        )


def check_same_base(checkpoint: Checkpoint, init: Path | None, inherited: Inherited | None) -> None:
    """Refuse to go on with an adapter beside other weights than it was trained with.

    Raises:
        UsageError: names the folder and the file.
    """
    if checkpoint.adapter is None or inherited is None:
        return
    here = inherited.identity["weights_sha256"]
    for name, there in checkpoint.adapter.base.items():
        if here.get(name) != there:
            raise UsageError(
                f"cannot resume from {checkpoint.path}: its adapter belongs to a {name} with the SHA-256 {there}, but "
                f"in --init {init} it is {here.get(name, 'missing')}"
            )


def _flat(data: Mapping[str, Any], prefix: str = "data") -> dict[str, Any]:
    """Nested identities as flat names and values."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix} {name}") if isinstance(value, Mapping) else {f"{prefix} {name}": value}
    return flat


def machine(settings: TrainSettings, device: Device, processes: Processes) -> dict[str, Any]:
    """What the last bits of a result depend on, besides the settings that must stay the same."""
    return {
        "device": str(device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "processes": processes.count,
        "parallel": settings.machine.parallel if processes.count > 1 else None,
        "compile": settings.machine.compile,
    }


def warn_of_other_machine(
    checkpoint: Checkpoint, settings: TrainSettings, device: Device, processes: Processes
) -> None:
    """Log a warning where the run continues on a machine that may round differently."""
    here, there = machine(settings, device, processes), checkpoint.machine
    differing = [f"{name} {there.get(name)}, now {here[name]}" for name in here if here[name] != there.get(name)]
    if differing:
        logger.warning(
            "resuming; the last bits may differ from those of an uninterrupted run: %s", "; ".join(differing)
        )
    before, now = _precision(there), _precision(here)
    if before and before != now:
        logger.warning("resuming in %s, but the run was in %s: use `--dtype %s` to keep that", now, before, before)


def _precision(machine: Mapping[str, Any]) -> str:
    """The precision of the matrix products, at the end of a device's description; empty where it is unknown."""
    return str(machine.get("device", "")).rpartition(", ")[2]
