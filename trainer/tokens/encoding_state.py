"""How far encoding has come, and what an interrupted run leaves so that another goes on from there.

The folder OUTPUT/encode-state-SPLIT has the ids so far in SPLIT.bin, perhaps with some behind the position, and in
state.json the position, and what must be the same to go on from it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shared.bpe import Tokenizer
from shared.system.state_folder import StateError, StateFolder
from trainer.text.sources import Input
from trainer.tokens.token_file import Source
from trainer.tokens.writer import Written

_BLOCK_BYTES = 1 << 20


@dataclass
class Position:
    """Everything before a place in one of the inputs has been encoded, and nothing behind it.

    Attributes:
        source: The number of the input.
        offset: The place in it, in bytes of text or in records.
        source_documents: Documents that ended in this input.
        is_open: Whether text other than white space came after the last of them; at the end of all inputs, whether the
            document is open that the held-out end was cut from.
        documents: Documents that ended in all inputs.
        bytes_read: Bytes of text in all inputs.
        replaced: Characters put in place of bytes that are not UTF-8.
        end_is_held_out: Whether the end of the text was moved to the validation file, since no document fell to it.
        sources: The inputs before this one.
        digest: Of the bytes of this input, where they are those of the text.
    """

    source: int = 0
    offset: int = 0
    source_documents: int = 0
    is_open: bool = False
    documents: int = 0
    bytes_read: int = 0
    replaced: int = 0
    end_is_held_out: bool = False
    sources: list[Source] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def to_json(self) -> dict[str, Any]:
        """All of it; of the digest its value."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**plain, "sources": [asdict(source) for source in self.sources], "sha256": self.digest.hexdigest()}

    @classmethod
    def from_json(cls, content: dict[str, Any], inputs: Sequence[Input]) -> "Position":
        """What `to_json` gave; the bytes before the place are read again.

        Raises:
            StateError: If they are others now.
        """
        sources = [Source(**source) for source in content["sources"]]
        position = cls(**{name: content[name] for name in _PLAIN}, sources=sources)
        if position.source < len(inputs) and inputs[position.source].is_plain:
            path = inputs[position.source].path
            position.digest = _digest(path, position.offset)
            if position.digest.hexdigest() != content["sha256"]:
                raise StateError(f"{path} was changed since the run was interrupted; start anew without --resume")
        return position


_PLAIN = (
    "source", "offset", "source_documents", "is_open", "documents", "bytes_read", "replaced", "end_is_held_out"
)  # fmt: skip


class EncodingState:
    """The folder of a run.

    Args:
        output: The folder for the token files.
        name: The split that is written, or the first of them.
        identity: What must be the same for a run to go on.
    """

    def __init__(self, output: Path, name: str, identity: dict[str, Any]):
        self.folder = StateFolder(output / f"encode-state-{name}", identity)

    def partial(self, name: str) -> Path:
        """Where the ids of a split are written to."""
        return self.folder.path / f"{name}.bin"

    def save(self, position: Position, written: Sequence[Written], *, overwrite: bool) -> None:
        """Save a position, up to which these ids are on disk."""
        self.folder.save(
            {
                "position": position.to_json(),
                "written": [asdict(each) for each in written],
                "overwrite": overwrite,
            }
        )

    def load(self, inputs: Sequence[Input]) -> tuple[Position, list[Written], bool]:
        """What was saved.

        Raises:
            StateError: If nothing was, or it is of other inputs, of other settings, or damaged.
        """
        content = self.folder.load()
        try:
            position = Position.from_json(content["position"], inputs)
            return position, [Written(**each) for each in content["written"]], bool(content["overwrite"])
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{self.folder.manifest} cannot be resumed from: {error!r}; start anew without --resume"
            ) from None

    def clear(self) -> None:
        """Delete what is in the folder."""
        self.folder.manifest.unlink(missing_ok=True)  # first, since without ids it is worth nothing
        for suffix in ("bin", "json"):
            for path in self.folder.path.glob(f"*.{suffix}"):
                path.unlink()

    def remove(self) -> None:
        """Delete everything."""
        self.clear()
        self.folder.remove()


def identity_of(inputs: Sequence[Input], tokenizer: Tokenizer, **settings: Any) -> dict[str, Any]:
    """What `EncodingState` compares."""
    return {
        "tokenizer": tokenizer.fingerprint,
        **settings,
        "inputs": [[str(given.path), given.content.version] for given in inputs],
    }


def _digest(path: Path, size: int) -> "hashlib._Hash":
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
            digest.update(block)
            size -= len(block)
    return digest
