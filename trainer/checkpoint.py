"""Checkpoints: model folders that also hold what training needs to go on exactly where it was."""

import logging
import pickle
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.bpe import Tokenizer
from shared.lm import GenerationDefaults, ModelFolderError, Transformer, load_model_folder, save_model_folder
from trainer.checksums import ChecksumError, verify_checksums, write_checksums
from trainer.errors import TrainerError
from trainer.run_state import RunState

logger = logging.getLogger(__name__)

STATE_FILE = "training_state.pt"
BEST = "best"
"""The name of the link to the checkpoint with the lowest validation loss."""

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

    def add_state(temporary: Path) -> None:
        _write_state(state, temporary / STATE_FILE)
        write_checksums(temporary)

    path = checkpoint_path(folder, run.step)
    save_model_folder(
        path,
        model=model,
        tokenizer=tokenizer,
        generation=generation,
        provenance=dict(provenance),
        extra_files=add_state,
        overwrite=True,
    )
    return path


def checkpoint_path(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"step-{step:08d}"


def delete_old_checkpoints(folder: Path, *, newest: int, keep: int, spare: Iterable[Path] = ()) -> None:
    """Delete all but the newest `keep` (0: none), and never those to spare.

    Checkpoints of steps beyond `newest` are left alone and do not count: they are damaged, else the run would have gone
    on from there.
    """
    paths = [path for path in list_checkpoints(folder) if path <= checkpoint_path(folder, newest)]
    for old in paths[keep:] if keep else ():
        if old not in spare:
            shutil.rmtree(old)


def link_best(folder: Path, step: int | None) -> None:
    """Make `folder`/best a link to the checkpoint of a step, in one move; None removes the link."""
    link, new = folder / BEST, folder / f".{BEST}.new"
    new.unlink(missing_ok=True)
    if step is None:
        link.unlink(missing_ok=True)
        return
    new.symlink_to(checkpoint_path(folder, step).name)
    new.replace(link)


def _write_state(state: Mapping[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # torch hides why a write failed, such as a full disk, behind an error of its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdigit()), reverse=True)


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
            logger.warning("%s is damaged and is left aside: %s", path, str(error).partition("\n")[0])
    found = f"none of the {len(paths)} in it can be read" if paths else "there is none in it"
    raise TrainerError(f"no checkpoint to resume from in {folder}: {found}; begin anew with --overwrite")


def _load(path: Path) -> Checkpoint:
    verify_checksums(path)
    model = load_model_folder(path, dtype=torch.float32, research=True).model
    # weights_only: nothing in the file is run. On the CPU first, since the device that wrote it may not be here.
    state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    checkpoint = Checkpoint(
        path,
        RunState(**state["run"]),
        model,
        *(state[key] for key in ("optimizer", "settings", "data", "machine")),
    )
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
