"""Whether a run may go on from a checkpoint with the settings of today."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoints.checkpoint import Checkpoint
from trainer.compute.device import Device
from trainer.compute.processes import Processes
from trainer.errors import UsageError
from trainer.settings.train import TrainSettings, to_table

logger = logging.getLogger(__name__)

FREE_ON_RESUME = {
    *("data", "output", "resume", "overwrite", "checkpoint_interval", "keep", "keep_best", "stop_after"),
    *("device", "compile", "threads", "deterministic", "parallel"),
    *("log_interval", "eval_interval", "eval_tokens", "sample_interval", "sample_prompt", "sample_tokens"),
    *("temperature", "top_p", "tensorboard", "wandb"),
    *("on_divergence", "spike_threshold", "max_skips", "max_rollbacks", "rollback_learning_rate_factor"),
}
"""Settings that may differ when a run goes on, since they do not change what is trained while all is well."""


def check_same_run(checkpoint: Checkpoint, settings: TrainSettings, data: dict[str, Any], settings_file: Path) -> None:
    """Refuse to go on with other settings or other data than the checkpoint's, or to stop where it is already.

    Args:
        checkpoint: Where to go on from.
        settings: Those of today.
        data: What identifies the data of today.
        settings_file: Where the run's own settings are.

    Raises:
        UsageError: names every difference, or both steps.
    """
    stop_after, step = settings.checkpoints.stop_after, checkpoint.run.step
    if stop_after is not None and stop_after <= step:
        raise UsageError(
            f"stop_after ({stop_after}) must be above {step}, the step of the checkpoint {checkpoint.path}"
        )
    data_there = _facts(checkpoint.data)
    here, there = to_table(settings) | _facts(data), checkpoint.settings | data_there
    # Where the data lies may differ, and what it is may not.
    names = [name for name in here | data_there if name not in FREE_ON_RESUME]
    differing = [name for name in names if here.get(name) != there.get(name)]
    if "max_steps" in differing:
        differing.remove("max_steps")
        logger.warning(
            "max_steps is %s now and was %s: from here on the learning rate follows the new schedule",
            here["max_steps"],
            there["max_steps"],
        )
    if "dtype" in differing and here["dtype"] == _precision(checkpoint.machine):  # which `auto` stood for
        differing.remove("dtype")
    if differing:
        lines = "".join(f"\n  {name}: {there.get(name)} in the run, {here.get(name)} now" for name in differing)
        raise UsageError(
            f"cannot go on from {checkpoint.path} with other settings or data than the run's own (its settings are in "
            f"{settings_file}):{lines}"
        )


def _facts(data: Mapping[str, Any], of: str = "data") -> dict[str, Any]:
    """What identifies data as flat names and values."""
    facts: dict[str, Any] = {}
    for name, value in data.items():
        facts |= _facts(value, f"{of} {name}") if isinstance(value, Mapping) else {f"{of} {name}": value}
    return facts


def machine(settings: TrainSettings, device: Device, processes: Processes) -> dict[str, Any]:
    """What the last bits of a result depend on beside the settings that may not change."""
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
    """Say so where the run goes on with what may round differently."""
    here, there = machine(settings, device, processes), checkpoint.machine
    differing = [f"{name} {there.get(name)}, now {here[name]}" for name in here if here[name] != there.get(name)]
    if differing:
        logger.warning(
            "the run goes on, but its last bits may differ from an uninterrupted run's: %s", "; ".join(differing)
        )
    before, now = _precision(there), _precision(here)
    if before and before != now:
        logger.warning("the run goes on in %s, but was in %s: `--dtype %s` keeps to that", now, before, before)


def _precision(machine: Mapping[str, Any]) -> str:
    """That of the matrix products, which ends what `Device` says of itself; empty where it is not known."""
    return str(machine.get("device", "")).rpartition(", ")[2]
