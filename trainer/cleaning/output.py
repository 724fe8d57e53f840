"""The folder that `clean` writes, on a disk or in an object store, and what an unfinished run has left in it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.system.files import to_json
from trainer.errors import TrainerError
from trainer.storage.folder import Folder, StorageError

STATE, REPORT = "clean-state", "cleaning.json"

_IDENTITY = "identity.json"
_EXAMINED, _WRITTEN, _FINAL = ".examined", ".partial", ".jsonl"
_REQUESTS = 16  # at a time, each of which waits for an object store


def examined_name(number: int) -> str:
    """The file of what the first pass keeps of a part, in `STATE`."""
    return f"part-{number:05}{_EXAMINED}"


def written_name(number: int) -> str:
    """The file of the documents of a part that stay, in `STATE`."""
    return f"part-{number:05}{_WRITTEN}"


@dataclass(frozen=True)
class CleanOutput:
    """The parts of cleaned text, and the report, which comes last and says that all are there.

    Until then parts are in `STATE`, with the identity of the run that they belong to.

    Attributes:
        folder: The folder.
        identity: What the result depends on.
    """

    folder: Folder
    identity: Mapping[str, Any]

    @contextmanager
    def opened(self, *, overwrite: bool) -> Iterator[Path]:
        """Begin a run, or continue one; yields a local folder for files of the state, see `Folder.scratch`.

        Raises:
            TrainerError: The output has cleaned text, or the state is another run's.
            StorageError: Another process works there, or it cannot be read or written.
        """
        parts = [name for name in self.folder.names("") if name.startswith("part-") and name.endswith(_FINAL)]
        is_finished = self.folder.exists(REPORT) or (parts and not self.folder.names(STATE))
        if is_finished and not overwrite:
            raise TrainerError(
                f"{self.folder} has cleaned text; choose another --output, or replace it with --overwrite"
            )
        with self.folder.scratch(STATE) as scratch:
            state = self.folder.names(STATE)
            if not overwrite and state and (found := self._other()):
                raise TrainerError(
                    f"{self.folder.path(STATE)} is what an interrupted run of other inputs or settings left ({found}); "
                    "run the same command to continue it, or start again with --overwrite"
                )
            self.folder.claim(STATE)
            if overwrite:
                self.folder.remove(REPORT)
                _for_all(self.folder.remove, [*parts, *(f"{STATE}/{name}" for name in state)])
            self.folder.write(f"{STATE}/{_IDENTITY}", to_json(self.identity).encode())
            yield scratch

    def examined(self) -> set[int]:
        """The parts that the first pass has finished."""
        return _numbers(self.folder.names(STATE), _EXAMINED)

    def written(self) -> set[int]:
        """The parts that the second pass has finished."""
        return _numbers(self.folder.names(STATE), _WRITTEN) | _numbers(self.folder.names(""), _FINAL)

    def publish(self, report: Mapping[str, Any]) -> None:
        """Give all parts their names, write the report, and delete the state."""
        numbers = _numbers(self.folder.names(STATE), _WRITTEN)
        _for_all(lambda n: self.folder.rename(f"{STATE}/{written_name(n)}", f"part-{n:05}{_FINAL}"), numbers)
        self.folder.write(REPORT, to_json(report).encode())
        self.forget()

    def forget(self) -> None:
        """Delete the state; what it belongs to last."""
        _for_all(self.folder.remove, (f"{STATE}/{n}" for n in self.folder.names(STATE) if n != _IDENTITY))
        self.folder.remove(f"{STATE}/{_IDENTITY}")

    def _other(self) -> str:
        """The first thing that differs from what the state belongs to."""
        try:
            before = json.loads(self.folder.read(f"{STATE}/{_IDENTITY}"))
            return next((name for name, value in self.identity.items() if before.get(name) != value), "")
        except (StorageError, ValueError, AttributeError) as error:
            return str(error)


def _numbers(names: Iterable[str], suffix: str) -> set[int]:
    stems = (name.removeprefix("part-").removesuffix(suffix) for name in names if name.endswith(suffix))
    return {int(stem) for stem in stems if stem.isdigit()}


def _for_all(function: Callable[[Any], None], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(function, items))
