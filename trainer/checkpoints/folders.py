"""Which checkpoints a run has, and which of them are kept. Free of torch, for reports and sweeps."""

import itertools
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from shared.system.checksums import CHECKSUMS_FILE, ChecksumError, Checksums
from shared.system.folder_swap import remove

logger = logging.getLogger(__name__)

BEST = "best"
"""The name of the link to the checkpoint with the lowest validation loss."""

_NAME = re.compile("step-([0-9]{8,})")


def checkpoint_path(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int | None:
    """The step in a name; None where the name is not one that `checkpoint_path` gives, such as that of a copy."""
    match = _NAME.fullmatch(path.name)
    step = int(match[1]) if match else None
    return step if step is not None and checkpoint_path(path.parent, step) == path else None


def checkpoints_by_step(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder, newest first; files and folders with other names are ignored."""
    steps = ((checkpoint_step(path), path) for path in folder.glob("step-*") if path.is_dir())
    return dict(sorted(((step, path) for step, path in steps if step is not None), reverse=True))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return list(checkpoints_by_step(folder).values())


def verify_checkpoint(path: Path) -> None:
    """Compare all files of a checkpoint with their checksums.

    Raises:
        ChecksumError: names the file and the fault.
    """
    checksums = Checksums.read(path)
    if checksums.sums is None:
        raise ChecksumError(
            f"{path / CHECKSUMS_FILE} is missing: it was deleted, or an earlier release wrote the folder"
        )
    for name in checksums.sums:
        checksums.verify(name)


def is_intact(path: Path) -> bool:
    """Whether the files of a checkpoint match their checksums."""
    try:
        verify_checkpoint(path)
    except ChecksumError:
        return False
    return True


def has_intact_checkpoint(folder: Path) -> bool:
    """Whether a folder has a checkpoint whose files match their checksums, to resume from."""
    return any(map(is_intact, list_checkpoints(folder)))


def delete_old_checkpoints(folder: Path, *, keep: int, spare: Iterable[Path] = ()) -> None:
    """Delete all but the newest `keep` (0 deletes none) and those in `spare`."""
    for old in list_checkpoints(folder)[keep:] if keep else ():
        if old not in spare:
            remove(old)


def move_aside(path: Path) -> None:
    """Rename what is in the way so that it is not taken for a checkpoint, and log a warning."""
    names = (f"{path.name}.aside{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
    aside = next(aside for name in names if not os.path.lexists(aside := path.with_name(name)))
    path.rename(aside)
    logger.warning("%s was moved aside, to %s: delete it if you do not need it", path, aside.name)


def make_way(path: Path) -> None:
    """Move aside what `save_model_folder` would not replace: a file, or a folder without ownlm.json."""
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty_folder and not (path / "ownlm.json").is_file():
        move_aside(path)


def link_best(folder: Path, step: int | None) -> None:
    """Make `folder`/best a link to the checkpoint of a step, atomically; None removes the link."""
    link, new = folder / BEST, folder / f".{BEST}.new"
    if step is None:
        if link.is_symlink():
            link.unlink()
        return
    if link.exists() and not link.is_symlink():
        move_aside(link)
    remove(new)
    new.symlink_to(checkpoint_path(folder, step).name)
    new.replace(link)
