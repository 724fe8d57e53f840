"""Where the tasks of a job write: a folder that all nodes reach, and room for what is not complete."""

import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.storage.folder import Folder, LocalFolder, StorageError, full_disk_errors

_NFS_SECONDS = 60  # for which a client of NFS may remember that a file does not exist (acdirmax)
_ADVICE = "name an --output on a disk that all nodes share, or in an object store"


@dataclass(frozen=True)
class TaskOutput:
    """What tasks share of an output.

    Attributes:
        folder: Where complete files go.
        scratch: On the disk that all nodes share, for what is not complete; None where the folder is an object store's.
    """

    folder: Folder
    scratch: Path | None

    @classmethod
    def of(cls, folder: Folder, scratch: Path) -> "TaskOutput":
        """Of a folder and what its `scratch` has given."""
        return cls(folder, scratch if isinstance(folder, LocalFolder) else None)

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        """A folder of this attempt alone: another may still run on a node that was thought to be lost.

        That of a process that was killed is removed with `LocalFolder.scratch`.

        Raises:
            StorageError: The disk is full, or not one that all nodes share.
        """
        if self.scratch is None:
            with tempfile.TemporaryDirectory(prefix="ownlm-") as path, full_disk_errors(Path(path)):
                yield Path(path)
            return
        folder = self.scratch / f"task-{uuid.uuid4().hex}"
        try:
            with full_disk_errors(folder):
                self._make(folder)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir()
        except FileNotFoundError:
            raise StorageError(f"{folder.parent} is not on the node {socket.gethostname()}: {_ADVICE}") from None

    def check_visible(self, name: str) -> None:
        """Raise a StorageError if a file that a task has written is not here."""
        deadline = time.monotonic() + (0 if self.scratch is None else _NFS_SECONDS)
        while not self.folder.exists(name):
            if time.monotonic() >= deadline:
                path = self.folder.path(name)
                raise StorageError(f"{path} was written by another node and is not here: {_ADVICE}")
            time.sleep(1)
