"""Checkpoints: model folders that also hold what training needs to resume exactly."""

import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelFolderError, Transformer, load_model_folder, save_model_folder
from shared.system.checksums import ChecksumError
from trainer.checkpoints.folders import checkpoint_path, checkpoint_step, checkpoints_by_step, verify_checkpoint
from trainer.checkpoints.inherited import Inherited
from trainer.checkpoints.run_state import RunState
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.errors import TrainerError

logger = logging.getLogger(__name__)

STATE_FILE = "training_state.pt"

# What reading a damaged folder or a damaged state file raises.
_DAMAGE = (
    ChecksumError,
    ModelFolderError,
    OSError,
    RuntimeError,
    KeyError,
    TypeError,
    EOFError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True)
class Adapter:
    """What a checkpoint of LoRA holds to go on from; its weights have the adapter in them.

    Attributes:
        weights: A and B by their names, see `adapter_weights`.
        base: SHA-256 of the weight files that are frozen, by name.
    """

    weights: dict[str, Tensor]
    base: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back.

    Attributes:
        path: Its folder.
        run: How far the run had come.
        model: The model with its weights, in float32 on the CPU.
        optimizer: The optimizer's state dict.
        settings: The settings of the run, as a flat table.
        data: What identifies the training tokens.
        machine: What it was computed with.
        random: The state of torch's random generators, for `restore_random_state`; None where it is missing.
        adapter: Of LoRA; None where all weights are trained.
    """

    path: Path
    run: RunState
    model: Transformer
    optimizer: dict[str, Any]
    settings: dict[str, Any]
    data: dict[str, Any]
    machine: dict[str, Any]
    random: dict[str, Any] | None
    adapter: Adapter | None = None


def save_checkpoint(
    folder: Path,
    *,
    run: RunState,
    model: Transformer,
    optimizer: Mapping[str, Any],
    tokenizer: Tokenizer,
    generation: GenerationDefaults,
    provenance: Mapping[str, Any],
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    machine: Mapping[str, Any],
    inherited: Inherited | None = None,
    adapter: Adapter | None = None,
    write_templates: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Write `folder`/step-NNNNNNNN, whole or not at all; `write_templates` adds the chat templates to the folder.

    With an adapter, the model is what a finished folder would be, in the parent's dtype: nothing goes on from it.

    Raises:
        TypeError: the model is not a Transformer, or is wrapped.
        ModelFolderError: writing failed, and nothing was changed.
    """
    state = {
        "run": asdict(run),
        "optimizer": dict(optimizer),
        "settings": dict(settings),
        "data": dict(data),
        "machine": dict(machine),
        "random": random_state(),
        **({} if adapter is None else {"adapter": asdict(adapter)}),
    }

    def add_files(temporary: Path) -> None:
        write_templates(temporary)
        if inherited is not None:
            inherited.write(temporary)
        _write_state(state, temporary / STATE_FILE)

    path = checkpoint_path(folder, run.step)
    save_model_folder(
        path,
        model=model,
        tokenizer=tokenizer,
        generation=generation,
        provenance=dict(provenance),
        extra_files=add_files,
        overwrite=True,
        dtype=None if adapter is None or inherited is None else inherited.dtype,
    )
    return path


def _write_state(state: Mapping[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # torch raises its own error in place of the OSError of a failed write, such as on a full disk.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_newest_checkpoint(folder: Path, processes: Processes = ONE_PROCESS) -> Checkpoint:
    """Read the newest checkpoint that is intact for all processes; nothing is restored yet. Warns of damaged ones.

    Args:
        folder: The folder of the run's checkpoints.
        processes: Those that train together, all of which call this.

    Raises:
        TrainerError: there is no such checkpoint.
    """
    paths = checkpoints_by_step(folder)
    checkpoint = _newest_intact(paths.values())
    while True:
        steps = processes.gather(-1 if checkpoint is None else checkpoint.run.step)
        if checkpoint is None:
            damaged = "damaged" if processes.count == 1 else "damaged, or not there for other processes"
            reason = f"all {len(paths)} in it are {damaged}" if paths else "it is empty"
            raise TrainerError(f"no checkpoint to resume from in {folder}: {reason}; start again with --overwrite")
        if min(steps) == max(steps):
            return checkpoint
        if min(steps) < 0:
            raise TrainerError(
                f"no checkpoint to resume from: {checkpoint.path} is intact, but process {steps.index(-1)} has none"
            )
        checkpoint = _newest_intact(path for step, path in paths.items() if step <= min(steps))


def _newest_intact(paths: Iterable[Path]) -> Checkpoint | None:
    return next(filter(None, map(_load_intact, paths)), None)


def _load_intact(path: Path) -> Checkpoint | None:
    try:
        return _load(path)
    except _DAMAGE as error:
        logger.warning("%s is damaged: %s", path, str(error).partition("\n")[0])
        return None


def _load(path: Path) -> Checkpoint:
    verify_checkpoint(path)
    model = load_model_folder(path, dtype=torch.float32, research=True).model
    # weights_only: no code in the file runs. On the CPU first: the device that wrote it may be missing here.
    state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    checkpoint = Checkpoint(
        path,
        RunState(**{"tokens": _tokens_of_steps(state), **state["run"]}),
        model,
        optimizer=state["optimizer"],
        settings=state["settings"],
        data=state["data"],
        machine=state["machine"],
        random=state.get("random"),
        adapter=Adapter(**state["adapter"]) if "adapter" in state else None,
    )
    if checkpoint.run.step != checkpoint_step(path):
        raise ModelFolderError(f"it holds step {checkpoint.run.step}: it is a renamed copy")
    if checkpoint.random is None:
        logger.warning("%s has no random generator state: resuming will not give the same result", path)
    return checkpoint


def _tokens_of_steps(state: Mapping[str, Any]) -> int:
    """The tokens that a run has seen, for checkpoints of releases that did not count them: all steps had as many."""
    table = state["settings"]
    return int(state["run"]["step"] * (table["total_batch_size"] or table["batch_size"]) * table["context_length"])


def random_state() -> dict[str, Tensor | list[Tensor]]:
    """The state of torch's random generators, on the CPU and on each GPU."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set torch's random generators to a state from `random_state`; those of GPUs only where as many are there."""
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
