"""What an interrupted `encode` leaves, so that inputs that were encoded completely need not be encoded again.

The directory OUTPUT/encode-state-SPLIT contains the ids so far in SPLIT.bin, and state.json, which says how many of
them belong to finished inputs; the rest is cut off by the run that resumes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from shared.bpe import Tokenizer
from shared.system.state_folder import StateError, StateFolder
from trainer.settings.encode import EncodeSettings
from trainer.text.sources import Input
from trainer.tokens.parallel_encoder import Findings
from trainer.tokens.token_file import Source
from trainer.tokens.writer import Written


@dataclass
class Finished:
    """What has been encoded: the first inputs, completely.

    Attributes:
        sources: These inputs.
        bytes_read: Bytes of their text.
        replaced: Characters put in place of bytes that are not UTF-8.
        is_open: Whether the last training document still lacks its end, since its rest was held out.
        end_is_held_out: Whether the end of the text was moved to the validation file, which had no document.
        findings: Of conversations: what was wrong with some of them, how many, and where the first was.
    """

    sources: list[Source] = field(default_factory=list)
    bytes_read: int = 0
    replaced: int = 0
    is_open: bool = False
    end_is_held_out: bool = False
    findings: Findings = field(default_factory=dict)


class EncodingState:
    """The directory of a run.

    Attributes:
        folder: The same.
        num_inputs: How many inputs there are.
        is_repeatable: Whether all inputs can be read again.

    Args:
        output: The directory for the token files.
        inputs: What is encoded.
        tokenizer: The tokenizer.
        settings: How it is encoded.
        chat_template: Of conversations, the SHA-256 of the templates.
    """

    def __init__(
        self,
        output: Path,
        inputs: Sequence[Input],
        tokenizer: Tokenizer,
        settings: EncodeSettings,
        chat_template: str | None = None,
    ):
        self._tokenizer = tokenizer
        identity = {
            **settings.identity(),
            **({} if chat_template is None else {"chat_template": chat_template}),
            "inputs": [[str(given.path), given.content.version] for given in inputs],
        }
        self.folder = StateFolder(output / f"encode-state-{settings.splits[0]}", identity, version=2)
        self.num_inputs = len(inputs)
        self.is_repeatable = all(given.content.version is not None for given in inputs)

    @property
    def exists(self) -> bool:
        """Whether there is something to resume from."""
        return self.folder.manifest.exists()

    @cached_property
    def _identified(self) -> StateFolder:
        """The folder of this tokenizer's job. Its fingerprint takes a while, so it is made when it is needed."""
        return replace(self.folder, identity={"tokenizer": self._tokenizer.fingerprint, **self.folder.identity})

    def partial(self, name: str) -> Path:
        """Where the ids of a split are written to."""
        return self.folder.path / f"{name}.bin"

    def save(self, finished: Finished, written: Sequence[Written]) -> None:
        """Save what is finished, and how many ids of it are on disk; nothing if an input can be read only once.

        Raises:
            OSError: If it cannot be written.
        """
        if self.is_repeatable:
            self._identified.save({"finished": asdict(finished), "written": [asdict(each) for each in written]})

    def load(self) -> tuple[Finished, list[Written]]:
        """What was saved.

        Raises:
            StateError: If nothing was, or it is of other inputs, of other settings, or damaged.
        """
        content = self._identified.load()
        try:
            finished = Finished(**content["finished"])
            finished.sources = [Source(**source) for source in content["finished"]["sources"]]
            return finished, [Written(**each) for each in content["written"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{self.folder.manifest} cannot be resumed from: {error!r}; start again without --resume"
            ) from None

    def clear(self) -> None:
        """Delete what is in the directory."""
        self.folder.manifest.unlink(missing_ok=True)  # first: without ids it is worth nothing
        for suffix in ("bin", "mask", "json"):
            for path in self.folder.path.glob(f"*.{suffix}"):
                path.unlink()

    def remove(self) -> None:
        """Delete everything."""
        self.clear()
        self.folder.remove()
