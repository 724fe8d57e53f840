"""Checkpoints: model folders that also hold what training needs to go on exactly where it was."""

import logging
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelFolderError, Transformer, load_model_folder, save_model_folder
from shared.system.checksums import ChecksumError
from trainer.checkpoints.folders import checkpoint_path, checkpoint_step, list_checkpoints, verify_checkpoint
from trainer.checkpoints.run_state import RunState
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
    """

    path: Path
    run: RunState
    model: Transformer
    optimizer: dict[str, Any]
    settings: dict[str, Any]
    data: dict[str, Any]
    machine: dict[str, Any]


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
) -> Path:
    """Write `folder`/step-NNNNNNNN, whole or not at all.

    Raises:
        TypeError: the model is no Transformer, or is wrapped.
        ModelFolderError: writing failed. What was there is as it was.
    """
    state = {
        "run": asdict(run),
        "optimizer": dict(optimizer),
        "settings": dict(settings),
        "data": dict(data),
        "machine": dict(machine),
        "random": random_state(),
    }

    path = checkpoint_path(folder, run.step)
    save_model_folder(
        path,
        model=model,
        tokenizer=tokenizer,
        generation=generation,
        provenance=dict(provenance),
        extra_files=lambda temporary: _write_state(state, temporary / STATE_FILE),
        overwrite=True,
    )
    return path


def _write_state(state: Mapping[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # torch hides why a write failed, such as a full disk, behind an error of its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_newest_checkpoint(folder: Path) -> Checkpoint:
    """The newest checkpoint that is intact; damaged ones are reported. Random generators continue as saved with it.

    Raises:
        TrainerError: there is no intact checkpoint.
    """
    paths = list_checkpoints(folder)
    for path in paths:
        try:
            return _load(path)
        except _DAMAGE as error:
            logger.warning("%s is damaged: %s", path, str(error).partition("\n")[0])
    found = f"none of the {len(paths)} in it can be read" if paths else "there is none in it"
    raise TrainerError(f"no checkpoint to resume from in {folder}: {found}; begin anew with --overwrite")


def _load(path: Path) -> Checkpoint:
    verify_checkpoint(path)
    model = load_model_folder(path, dtype=torch.float32, research=True).model
    # weights_only: nothing in the file is run. On the CPU first, since the device that wrote it may not be here.
    state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    checkpoint = Checkpoint(
        path,
        RunState(**state["run"]),
        model,
        *(state[key] for key in ("optimizer", "settings", "data", "machine")),
    )
    if checkpoint.run.step != checkpoint_step(path):
        raise ModelFolderError(f"it holds step {checkpoint.run.step}: it is a copy under another name")
    if "random" in state:
        restore_random_state(state["random"])
    else:
        logger.warning("%s holds no state of the random generators: the run goes on, but not to the same result", path)
    return checkpoint


def random_state() -> dict[str, Tensor | list[Tensor]]:
    """The state of torch's random generators, on the CPU and on each GPU."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set torch's random generators to what `random_state` gave; GPUs only where their number is the same."""
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
