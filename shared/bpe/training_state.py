"""What an interrupted training leaves in a folder, so that it can go on: word counts, and how far they come."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.bpe.corpus import Source
from shared.bpe.counting import CorpusCounter, Position
from shared.bpe.errors import TokenizerError
from shared.bpe.files import to_json, write_text
from shared.bpe.word_runs import WordRuns

_VERSION = 1


@dataclass(frozen=True)
class TrainingState:
    """A folder of word counts with a manifest.

    Attributes:
        folder: Where it is; made when there is something to write.
        identity: What must be the same for counts to go together: pattern, special tokens and sources.
    """

    folder: Path
    identity: dict[str, Any]

    @property
    def runs(self) -> WordRuns:
        """The word counts in the folder."""
        return WordRuns(self.folder)

    @property
    def _manifest(self) -> Path:
        return self.folder / "state.json"

    def save(self, counter: CorpusCounter) -> None:
        """Write the counts and the position of a counter that does not run."""
        counter.spill()
        manifest = {
            "version": _VERSION,
            "identity": self.identity,
            "position": asdict(counter.position),
            "runs": [path.name for path in self.runs.paths],
        }
        write_text(self._manifest, to_json(manifest))

    def load(self) -> Position:
        """The position to go on from; counts that came after it are deleted.

        Raises:
            TokenizerError: If there is no state, or one of another corpus or of other settings.
        """
        try:
            manifest = json.loads(self._manifest.read_text(encoding="utf-8"))
            identity, names, position = manifest["identity"], manifest["runs"], Position(**manifest["position"])
        except FileNotFoundError:
            raise TokenizerError(f"there is nothing to resume: {self._manifest} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TokenizerError(f"{self._manifest} cannot be resumed from: {error}") from None
        for key, value in self.identity.items():
            if identity.get(key) != value:
                raise TokenizerError(
                    f"{self._manifest} is the state of another training: {key} was {identity.get(key)}, and is {value} "
                    "now. Give what was given then, or start anew without --resume"
                )
        for path in self.runs.paths:
            if path.name not in names:
                path.unlink()
        missing = set(names) - {path.name for path in self.runs.paths}
        if missing:
            raise TokenizerError(f"{self.folder} lacks {', '.join(sorted(missing))}; start anew without --resume")
        return position

    def remove(self) -> None:
        """Delete everything; nothing happens if there is nothing."""
        self._manifest.unlink(missing_ok=True)
        self.runs.remove()


def identity_of(pattern: str, special_tokens: Sequence[str], errors: str, sources: Sequence[Source]) -> dict[str, Any]:
    """What `TrainingState` compares."""
    return {
        "pattern": pattern,
        "special tokens": list(special_tokens),
        "errors": errors,
        "sources": [[source.name, source.size] for source in sources],
    }
