"""The directory that `encode` wrote, opened for training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.bpe import Tokenizer
from shared.chat import ChatTemplateError, TemplateFile, read_templates, write_templates
from trainer.conversations.template import template_end_of_turn, templates_sha256
from trainer.errors import TrainerError
from trainer.storage.cache import local_copy
from trainer.storage.remote import url_of
from trainer.tokens.token_file import TokenFile, TokenFileError


@dataclass(frozen=True)
class TrainingData:
    """The tokenizer and the token files it made.

    Attributes:
        tokenizer: The tokenizer.
        train: The training tokens.
        validation: The validation tokens, if there are any.
        templates: Those of conversations.
        end_of_turn_id: The special token that the template writes after an answer, if there is one.
    """

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile | None
    templates: TemplateFile | None = None
    end_of_turn_id: int | None = None

    def write_templates(self, folder: Path) -> None:
        """Write the chat templates into a model's folder."""
        if self.templates is not None:
            write_templates(folder, self.templates.templates)

    def identity(self) -> dict[str, Any]:
        """Counts and hashes, which differ from those of any other data."""
        files = {"train": self.train, "validation": self.validation}
        return {
            "fingerprint": self.tokenizer.fingerprint,
            **{name: file.manifest.identity() for name, file in files.items() if file is not None},
        }


def open_training_data(folder: Path, *, verify: bool = True) -> TrainingData:
    """Open the token files and the tokenizer beside them, and check that they belong together.

    Args:
        folder: Where they are; in an object store, they are copied to this machine first.
        verify: Read the files once, to compare their checksums. Without it, only the ids that are read later are
            checked, each for being within the vocabulary.

    Raises:
        TokenFileError: a file is missing or damaged, comes from another tokenizer, or has ids beyond the vocabulary.
        TokenizerError: the tokenizer cannot be read.
        TrainerError: there are too few validation tokens to score one; or the chat templates cannot be read.
    """
    given, folder = folder, local_copy(folder)
    tokenizer = Tokenizer.from_files(folder)
    train = TokenFile.open_copy(folder, given, "train", fingerprint=tokenizer.fingerprint)
    validation = None
    if (folder / "val.json").exists():
        validation = TokenFile.open_copy(folder, given, "val", fingerprint=tokenizer.fingerprint)
        if len(validation) < 2:
            raise TrainerError(f"{validation.path}: need at least 2 tokens, found {len(validation)}")
    if verify and url_of(given) is None:  # what was copied has been compared already
        for file in (train, validation):
            if file is not None:
                file.verify()
    templates = _open_templates(folder, [file for file in (train, validation) if file is not None])
    end_of_turn = None if templates is None else template_end_of_turn(templates, tokenizer)
    return TrainingData(tokenizer, train, validation, templates, None if end_of_turn is None else end_of_turn.id)


def _open_templates(folder: Path, files: Sequence[TokenFile]) -> TemplateFile | None:
    """The templates that token files of conversations were encoded with, which are beside them."""
    if all(not file.manifest.has_mask for file in files):
        return None
    try:
        templates = read_templates(folder)
    except ChatTemplateError as error:
        raise TrainerError(str(error)) from None
    for file in files:
        if not file.manifest.has_mask:
            raise TokenFileError(f"{file.path} has no mask, but that beside it has one: encode both with --chat")
        if templates is None or templates_sha256(templates) != file.manifest.chat_template:
            raise TokenFileError(
                f"{file.path} was encoded with another chat template than that in {folder}; encode the conversations "
                "again"
            )
    return templates
