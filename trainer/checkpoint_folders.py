"""Which checkpoints a run has, and which of them stay. No torch here: reports and sweeps ask too."""

import shutil
from collections.abc import Iterable
from pathlib import Path

BEST = "best"
"""The name of the link to the checkpoint with the lowest validation loss."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdigit()), reverse=True)


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
