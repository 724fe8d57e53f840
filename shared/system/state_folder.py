"""What an interrupted job leaves behind: a folder of its files, with a manifest that says how far they come."""

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
        path: Where it is; made when there is something to write.
        identity: What must be the same for the job to go on: its input and its settings, by their names for people.
        version: Of what the job saves.
    """

    path: Path
    identity: dict[str, Any]
    version: int = 1

    @property
    def manifest(self) -> Path:
        """The file that is there if a job can go on."""
        return self.path / "state.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other processes out of it. If nothing comes into it, it is gone afterwards.

        Raises:
            StateError: If another process works in it.
        """
        made = [path for path in (self.path, self.path.parent) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            if not lock(handle, holder="file"):
                raise StateError(f"another process works in {self.path}; wait for it, or take another output folder")
            yield
        finally:
            os.close(handle)
            for path in made:
                with suppress(OSError):  # there is something in it, or it is gone
                    path.rmdir()

    def save(self, content: dict[str, Any]) -> None:
        """Write the manifest; it is there whole, or the one before it."""
        write_text(self.manifest, to_json({"version": self.version, "identity": self.identity, **content}))

    def load(self) -> dict[str, Any]:
        """What was saved.

        Raises:
            StateError: If nothing was saved, or it is of another input, of other settings or of another version.
        """
        try:
            manifest = json.loads(read_regular(self.manifest, LARGEST_RECORD))
            version, identity = manifest["version"], dict(manifest["identity"])
        except FileNotFoundError:
            raise StateError(f"there is nothing to resume: {self.manifest} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(f"{self.manifest} cannot be resumed from: {error}") from None
        if version != self.version:
            raise StateError(
                f"{self.manifest} has version {version!r}, this program reads {self.version}; start anew without "
                "--resume"
            )
        for key, value in self.identity.items():
            if identity.get(key) != value:
                raise StateError(
                    f"{self.manifest} is the state of another job: {_difference(key, identity.get(key), value)}. Give "
                    "what was given then, or start anew without --resume"
                )
        return dict(manifest)

    def remove(self) -> None:
        """Delete the manifest, and the folder if nothing else is in it; nothing happens if it is not there."""
        self.manifest.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()


def _difference(key: str, before: Any, now: Any) -> str:
    """What differs; of long lists only the first item that does."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            if one != other:
                return f"{key}: {one} then, {other} now"
    if isinstance(before, list) and isinstance(now, list):
        return f"{key}: {len(before)} then, {len(now)} now"
    return f"{key}: {before} then, {now} now"
