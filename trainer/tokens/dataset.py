"""The directory that `encode` wrote, opened for training."""

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
        train: The training tokens.
        validation: The validation tokens, if there are any.
    """

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile | None

    def identity(self) -> dict[str, Any]:
        """Counts and hashes, which differ from those of any other data."""
        files = {"train": self.train, "validation": self.validation}
        return {
            "fingerprint": self.tokenizer.fingerprint,
            **{
                name: {"tokens": file.manifest.count, "sha256": file.manifest.sha256}
                for name, file in files.items()
                if file is not None
            },
        }


def open_training_data(folder: Path, *, verify: bool = True) -> TrainingData:
    """Open the token files and the tokenizer beside them, and check that they belong together.

    Args:
        folder: Where they are.
        verify: Read the files once, to compare their checksums. Without it, only the ids that are read later are
            checked, each for being within the vocabulary.

    Raises:
        TokenFileError: a file is missing or damaged, comes from another tokenizer, or has ids beyond the vocabulary.
        TokenizerError: the tokenizer cannot be read.
        TrainerError: there are too few validation tokens to score one.
    """
    tokenizer = Tokenizer.from_files(folder)
    train = TokenFile.open(folder, "train", fingerprint=tokenizer.fingerprint)
    validation = None
    if (folder / "val.json").exists():
        validation = TokenFile.open(folder, "val", fingerprint=tokenizer.fingerprint)
        if len(validation) < 2:
            raise TrainerError(f"{validation.path}: need at least 2 tokens, found {len(validation)}")
    if verify:
        for file in (train, validation):
            if file is not None:
                file.verify()
    return TrainingData(tokenizer, train, validation)
