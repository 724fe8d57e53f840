"""The saved state of an interrupted job: a folder of its files, with a manifest of its progress."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.system.files import to_json, write_text
from shared.system.locks import lock
from shared.system.regular_file import LARGEST_RECORD, read_regular


class StateError(ValueError):
    """A saved state that cannot be resumed from; the message says why."""


@dataclass(frozen=True)
class StateFolder:
    """The folder of one job.

    Attributes:
        path: The folder; created when there is something to write.
        identity: What must be equal for the job to resume: its inputs and settings, by readable names.
        version: Format version of what the job saves.
    """

    path: Path
    identity: dict[str, Any]
    version: int = 1

    @property
    def manifest(self) -> Path:
        """The file that exists if a job can be resumed."""
        return self.path / "state.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it against other processes; it is removed afterwards if it is empty.

        Raises:
            StateError: Another process holds the lock.
        """
        made = [path for path in (self.path, self.path.parent) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            if not lock(handle, holder="file"):
                raise StateError(f"another process is using {self.path}; wait for it, or choose another output folder")
            yield
        finally:
            os.close(handle)
            for path in made:
                with suppress(OSError):  # not empty, or removed already
                    path.rmdir()

    def save(self, content: dict[str, Any]) -> None:
        """Replace the manifest atomically."""
        write_text(self.manifest, to_json({"version": self.version, "identity": self.identity, **content}))

    def load(self) -> dict[str, Any]:
        """The saved content.

        Raises:
            StateError: Nothing was saved, or with another input, other settings or another version.
        """
        try:
            manifest = json.loads(read_regular(self.manifest, LARGEST_RECORD))
            version, identity = manifest["version"], dict(manifest["identity"])
        except FileNotFoundError:
            raise StateError(f"there is nothing to resume: {self.manifest} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"{self.manifest} cannot be read: {error}") from None
        if version != self.version:
            raise StateError(
                f"{self.manifest} has version {version!r}, this program reads {self.version}; start again without "
                "--resume"
            )
        for key, value in self.identity.items():
            if identity.get(key) != value:
                raise StateError(
                    f"{self.manifest} belongs to another job: {_difference(key, identity.get(key), value)}. Use the "
                    "same inputs and settings, or start again without --resume"
                )
        return dict(manifest)

    def remove(self) -> None:
        """Delete the manifest if it exists, and the folder if it is then empty."""
        self.manifest.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()


def _difference(key: str, before: Any, now: Any) -> str:
    """What differs; of lists of equal length only the first item that does."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            if one != other:
                return f"{key}: {one} then, {other} now"
    if isinstance(before, list) and isinstance(now, list):
        return f"{key}: {len(before)} then, {len(now)} now"
    return f"{key}: {before} then, {now} now"
