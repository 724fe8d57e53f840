"""What an interrupted training leaves in a folder, so that it can go on: word counts, and how far they come."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.training.corpus import Source
from shared.bpe.training.counter import CorpusCounter, Position
from shared.bpe.training.spill import WordRuns
from shared.system.state_folder import StateError, StateFolder


class TrainingStoppedError(TokenizerError):
    """A training that was asked to stop.

    Attributes:
        saved: Whether it can go on from there.
    """

    saved = False


class TrainingState:
    """The folder of a training.

    Args:
        path: Where it is; made when there is something to write.
        identity: What must be the same for counts to go together.

    Attributes:
        folder: The same.
        runs: The word counts in it.
    """

    def __init__(self, path: Path, identity: dict[str, Any]):
        self.folder = StateFolder(path, identity)
        self.runs = WordRuns(path)

    def save(self, counter: CorpusCounter) -> None:
        """Write the counts and the position of a counter that does not run."""
        counter.spill()
        self.folder.save({"position": asdict(counter.position), "runs": [path.name for path in self.runs.paths]})

    def load(self) -> Position:
        """The position to go on from; counts that came after it are deleted.

        Raises:
            StateError: If there is no state, or one of another corpus or of other settings.
        """
        manifest = self.folder.load()
        try:
            names, position = set(manifest["runs"]), Position(**manifest["position"])
        except (KeyError, TypeError) as error:
            raise StateError(f"{self.folder.manifest} cannot be resumed from: {error!r}") from None
        missing = names - {path.name for path in self.runs.paths}
        if missing:
            raise StateError(f"{self.folder.path} lacks {', '.join(sorted(missing))}; start anew without --resume")
        for path in self.runs.paths:
            if path.name not in names:
                path.unlink()
        return position

    def clear(self) -> None:
        """Delete what is in the folder."""
        self.folder.manifest.unlink(missing_ok=True)  # first, since it tells of the runs
        self.runs.remove()

    def tidy(self) -> None:
        """Delete what no manifest tells of, after an error."""
        if self.folder.manifest.exists():
            self.load()
        else:
            self.remove()

    def remove(self) -> None:
        """Delete everything; nothing happens if there is nothing."""
        self.clear()
        self.folder.remove()


@contextmanager
def saved_when_stopped(state: TrainingState, counter: CorpusCounter, *, can_save: bool) -> Iterator[None]:
    """Save what a counter has when the training is interrupted, if that is of use; else leave nothing."""
    try:
        yield
    except (TrainingStoppedError, KeyboardInterrupt) as error:
        if can_save and counter.is_whole:
            state.save(counter)
            if isinstance(error, TrainingStoppedError):
                error.saved = True
        else:
            state.tidy()
        raise
    except BaseException:
        state.tidy()
        raise
    state.remove()


def identity_of(pattern: str, special_tokens: Sequence[str], errors: str, sources: Sequence[Source]) -> dict[str, Any]:
    """What `TrainingState` compares."""
    return {
        "pattern": pattern,
        "special tokens": list(special_tokens),
        "errors": errors,
        "sources": [[source.name, source.version] for source in sources],
    }
