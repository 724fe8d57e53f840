"""A folder on a disk or in an object store, in which a file appears only when it is complete."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from shared.system.files import write_bytes
from shared.system.locks import lock
from trainer.errors import TrainerError

_BLOCK_BYTES = 1 << 22


class StorageError(TrainerError):
    """A folder or a file in it that cannot be read or written."""


class Folder(Protocol):
    """A folder; names are relative to it and may have slashes.

    All methods raise a StorageError that names the file.
    """

    def path(self, name: str) -> str:
        """How errors and logs call a file."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def names(self, below: str) -> list[str]:
        """The names of the files in a folder below this one, in order; none where it does not exist."""

    def read(self, name: str) -> bytes:
        """A whole file."""

    def blocks(self, name: str) -> Iterator[bytes]:
        """A file, a few megabytes at a time."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a whole file or nothing of it."""

    def put(self, file: Path, name: str) -> None:
        """Take over a file of `scratch`, which is gone then; it appears under its name as a whole."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, in the place of a file that has it."""

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""

    def scratch(self, below: str) -> AbstractContextManager[Path]:
        """A local folder for files that are not complete."""

    def claim(self, name: str) -> None:
        """Within `scratch`: take the work of a name over from another run that writes here, if a lock did not stop it.

        From then on all that changes something raises a StorageError once another run has claimed the name.
        """

    def fetch(self, below: str, names: Sequence[str], scratch: Path) -> None:
        """Copy files of a folder below this one to its scratch; those of a folder on a disk are there."""

    def local(self, names: Sequence[str]) -> AbstractContextManager[Path]:
        """A local folder in which these files are, to be read."""


class LocalFolder:
    """A folder on a disk: files are synced and renamed.

    Args:
        path: The folder; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path

    def __str__(self) -> str:
        return str(self.folder)

    def path(self, name: str) -> str:
        """As in `Folder`."""
        return str(self.folder / name)

    def exists(self, name: str) -> bool:
        """As in `Folder`."""
        return (self.folder / name).exists()

    def names(self, below: str) -> list[str]:
        """As in `Folder`."""
        with self._errors(below, "read"):
            return sorted(path.name for path in (self.folder / below).glob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        """As in `Folder`."""
        with self._errors(name, "read"):
            return (self.folder / name).read_bytes()

    def blocks(self, name: str) -> Iterator[bytes]:
        """As in `Folder`."""
        with self._errors(name, "read"), (self.folder / name).open("rb") as file:
            yield from iter(lambda: file.read(_BLOCK_BYTES), b"")

    def write(self, name: str, content: bytes) -> None:
        """As in `Folder`."""
        with self._errors(name, "written"):
            write_bytes(self.folder / name, content)

    def put(self, file: Path, name: str) -> None:
        """As in `Folder`."""
        with self._errors(name, "written"):
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
            target = self.folder / name
            target.parent.mkdir(exist_ok=True)
            file.replace(target)

    def rename(self, name: str, to: str) -> None:
        """As in `Folder`."""
        with self._errors(to, "written"):
            (self.folder / name).replace(self.folder / to)

    def remove(self, name: str) -> None:
        """As in `Folder`."""
        with self._errors(name, "deleted"):
            (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def scratch(self, below: str) -> Iterator[Path]:
        """As in `Folder`: a folder below this one, which another process cannot use at the same time.

        Files in it stay, and folders are removed at the beginning and at the end. It is removed itself if it is empty
        then, and so is this folder.
        """
        path = self.folder / below
        made = [each for each in (path, self.folder) if not each.exists()]
        with self._errors(below, "written"):
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDONLY)
        try:
            if not lock(handle, holder="file"):
                raise StorageError(f"another process is using {path}; wait for it, or choose another output folder")
            _remove_folders_in(path)  # of a process that was killed
            try:
                yield path
            finally:
                _remove_folders_in(path)
        finally:
            os.close(handle)
            for each in [path, *made]:
                with suppress(OSError):  # not empty, or removed already
                    each.rmdir()

    def claim(self, name: str) -> None:
        """As in `Folder`: `scratch` has a lock."""

    def fetch(self, below: str, names: Sequence[str], scratch: Path) -> None:
        """As in `Folder`: nothing to do."""

    @contextmanager
    def local(self, names: Sequence[str]) -> Iterator[Path]:  # noqa: ARG002 - all of them are
        """As in `Folder`."""
        yield self.folder

    @contextmanager
    def _errors(self, name: str, done: str) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError):
            raise StorageError(
                f"{self.folder}: expected a directory, found a file; give another name, or move the file"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.path(name)} cannot be {done}: {error.strerror or error}") from None


@contextmanager
def full_disk_errors(scratch: Path) -> Iterator[None]:
    """Say which disk is full: that of a folder for files that are not complete."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StorageError(
            f"the disk of {scratch} is full: free some space; what goes to an object store, or comes from one, is "
            "first where TMPDIR says"
        ) from None


def _remove_folders_in(path: Path) -> None:
    for each in path.glob("*"):
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
