"""Checkpoints in an object store, for machines that share no disk.

A checkpoint is complete where its list of checksums is, which is written last and deleted first.
"""

import glob
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shared.system.checksums import CHECKSUMS_FILE
from shared.system.folder_swap import replace_folder
from trainer.checkpoints.folders import checkpoint_path, checkpoint_step, checkpoints_by_step, is_intact
from trainer.compute.processes import Processes
from trainer.errors import TrainerError, UsageError
from trainer.settings.train import CheckpointSettings, TrainSettings
from trainer.storage.remote import files_below, filesystem_of, store_errors, url_of

logger = logging.getLogger(__name__)


class CheckpointStore:
    """A folder of checkpoints anywhere that fsspec reaches.

    Args:
        url: As in `s3://bucket/runs/first`.

    Raises:
        UsageError: There is no such kind of storage, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url_of(Path(url)) or url.rstrip("/")
        try:
            self._system, self._root = filesystem_of(self.url)
        except OSError as error:
            raise UsageError(f"--checkpoint-store {self.url}: {error.strerror}") from None

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, the newest first.

        Raises:
            TrainerError: The storage cannot be reached.
        """
        with self._errors("read"):
            self._system.invalidate_cache()
            found = [Path(name) for name in self._system.find(self._root, maxdepth=2)]
        steps = (checkpoint_step(path.parent) for path in found if path.name == CHECKSUMS_FILE)
        return sorted((step for step in steps if step is not None), reverse=True)

    def upload(self, path: Path) -> None:
        """Copy a checkpoint to the store.

        Raises:
            TrainerError: It failed; what is there of it is not taken for a checkpoint.
        """
        there = f"{self._root}/{path.name}"
        with self._errors("written"):
            if self._system.exists(there):
                self._remove(there)
            files = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
            for folder in sorted({file.parent for file in files}):  # which a disk, unlike a store, must have
                self._system.makedirs(f"{there}/{folder.as_posix()}".removesuffix("/."), exist_ok=True)
            for file in sorted(files, key=lambda file: (file == Path(CHECKSUMS_FILE), file)):
                self._system.put_file(str(path / file), f"{there}/{file.as_posix()}")

    def download(self, step: int, folder: Path) -> Path:
        """Copy a checkpoint to a local folder, where it appears as a whole.

        Raises:
            TrainerError: It failed, or the files are not what was written.
        """
        path = checkpoint_path(folder, step)
        there = f"{self._root}/{path.name}"
        with replace_folder(path) as partial:
            with self._errors("read"):
                for name in files_below(self._system, there):
                    (partial / name).parent.mkdir(parents=True, exist_ok=True)
                    self._system.get_file(f"{there}/{name}", str(partial / name))
            if not is_intact(partial):
                raise TrainerError(f"{self.url}/{path.name} is damaged: its files do not match its {CHECKSUMS_FILE}")
        logger.info("downloaded %s/%s", self.url, path.name)
        return path

    def delete(self, steps: Iterable[int]) -> None:
        """Delete checkpoints.

        Raises:
            TrainerError: It failed.
        """
        for step in steps:
            with self._errors("deleted"):
                self._remove(f"{self._root}/{checkpoint_path(Path(), step).name}")

    def _remove(self, there: str) -> None:
        checksums = f"{there}/{CHECKSUMS_FILE}"
        if self._system.exists(checksums):
            self._system.rm_file(checksums)
        self._system.rm(glob.escape(there), recursive=True)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            with store_errors(self.url):
                yield
        except OSError as error:
            raise TrainerError(f"{self.url} cannot be {done}: {error.strerror}") from error


def fetch_newest(settings: TrainSettings, processes: Processes) -> None:
    """Copy the newest checkpoint, of the store or a machine, to each machine that lacks it; all processes call this.

    Raises:
        TrainerError: The storage cannot be reached.
    """
    url, folder = settings.checkpoints.checkpoint_store, settings.output / "checkpoints"
    if url is None:
        return
    store = CheckpointStore(url)
    here = checkpoints_by_step(folder) if processes.is_first_here else {}
    newest = next((step for step, path in here.items() if is_intact(path)), -1)
    processes.barrier()  # to compare checksums takes a while
    steps = processes.gather(newest)
    if processes.rank == steps.index(max(steps)) and newest > max(store.steps(), default=-1):
        _try(store.upload, here[newest])  # which failed, or was interrupted, when it was new
    processes.barrier()
    if processes.is_first_here:
        for step in store.steps():
            is_here = step == newest or (step in here and is_intact(here[step]))
            if is_here or _try(store.download, step, folder):
                break
    processes.barrier()


def _try(copy: Callable[..., object], *arguments: object) -> bool:
    """Whether this does not fail; a failure is a warning."""
    try:
        copy(*arguments)
    except TrainerError as error:
        logger.warning("%s", error)
        return False
    return True


def prepare_store(settings: CheckpointSettings) -> None:
    """Where a new run copies its checkpoints to a store, delete those of another run if the settings say `overwrite`.

    Raises:
        UsageError: There are some, and the settings do not; or there is no such kind of storage.
        TrainerError: The storage cannot be reached.
    """
    if settings.checkpoint_store is None or settings.resume:
        return
    store = CheckpointStore(settings.checkpoint_store)
    steps = store.steps()
    if steps and not settings.overwrite:
        raise UsageError(
            f"--checkpoint-store {store.url} already holds a run, up to step {steps[0]:,}: resume it (--resume), "
            "replace it (--overwrite), or name another folder"
        )
    store.delete(steps)


def resolve_resume(settings: TrainSettings, processes: Processes) -> TrainSettings:
    """The settings with `resume` as `auto_resume` decides, and the store's newest checkpoint here if it does.

    Raises:
        TrainerError: The storage cannot be reached.
    """
    checkpoints = settings.checkpoints
    if not (checkpoints.resume or checkpoints.auto_resume):
        return settings
    fetch_newest(settings, processes)
    there = bool(checkpoints_by_step(settings.output / "checkpoints"))
    resume = checkpoints.resume or sum(processes.all_reduce([float(there)])) > 0
    return replace(settings, checkpoints=replace(checkpoints, resume=resume))


def mirror(settings: TrainSettings, path: Path, best_step: int | None) -> None:
    """Copy a new checkpoint to the store, if there is one; a failure is a warning, since the next one may succeed."""
    checkpoints = settings.checkpoints
    if checkpoints.checkpoint_store is None:
        return
    try:
        store = CheckpointStore(checkpoints.checkpoint_store)
        store.upload(path)
        old = store.steps()[checkpoints.keep :] if checkpoints.keep else []
        store.delete(step for step in old if step != best_step)
    except TrainerError as error:
        logger.warning("%s; the checkpoint is on this machine alone", error)
