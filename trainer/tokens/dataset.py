"""The folder that `encode` wrote, opened for training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.bpe import Tokenizer
from trainer.errors import TrainerError
from trainer.tokens.token_file import TokenFile


@dataclass(frozen=True)
class TrainingData:
    """The tokenizer and the token files it made.

    Attributes:
        tokenizer: The tokenizer.
        train: What is trained on.
        validation: What is evaluated on, if there is such a file.
    """

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile | None

    def identity(self) -> dict[str, Any]:
        """What tells this data from other data: counts and hashes."""
        files = {"train": self.train, "validation": self.validation}
        return {
            "fingerprint": self.tokenizer.fingerprint,
            **{
                name: {"tokens": file.manifest.count, "sha256": file.manifest.sha256}
                for name, file in files.items()
                if file is not None
            },
        }


def open_training_data(folder: Path) -> TrainingData:
    """Open the token files and the tokenizer beside them, and check that they belong together.

    Raises:
        TokenFileError: a file is missing or damaged, comes from another tokenizer, or holds ids beyond the vocabulary.
        TokenizerError: the tokenizer cannot be read.
        TrainerError: there are too few validation tokens to score one.
    """
    tokenizer = Tokenizer.from_files(folder)
    train = TokenFile.open(folder, "train", fingerprint=tokenizer.fingerprint)
    validation = None
    if (folder / "val.json").exists():
        validation = TokenFile.open(folder, "val", fingerprint=tokenizer.fingerprint)
        if len(validation) < 2:
            raise TrainerError(f"{validation.path} holds {len(validation)} tokens; to score one takes two")
    for file in (train, validation):
        if file is not None:
            file.verify()
    return TrainingData(tokenizer, train, validation)
