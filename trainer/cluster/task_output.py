"""Where the tasks of a job write: a folder that all nodes reach, and room for what is not complete."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.storage.folder import Folder, LocalFolder, StorageError


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
        """
        if self.scratch is None:
            with tempfile.TemporaryDirectory(prefix="ownlm-") as path:
                yield Path(path)
            return
        folder = self.scratch / f"task-{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check_visible(self, name: str) -> None:
        """Raise a StorageError if a file that a task has written is not here."""
        if not self.folder.exists(name):
            raise StorageError(
                f"{self.folder.path(name)} was written by another node and is not here: name an --output that all "
                "nodes share, or one in an object store"
            )
