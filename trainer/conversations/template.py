"""The chat template that conversations are encoded with; it goes with the token files into the model's folder."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from shared.bpe import AddedToken, Tokenizer
from shared.chat import (
    DEFAULT_SPECIAL_TOKENS,
    DEFAULT_TEMPLATE,
    ChatRenderer,
    ChatTemplateError,
    TemplateFile,
    find_end_of_turn,
    read_template,
    read_templates,
    role_variables,
)
from trainer.errors import TrainerError, UsageError


@dataclass(frozen=True)
class ChosenTemplate:
    """The template of some token files.

    Attributes:
        file: The templates.
        source: Where they come from, in words.
    """

    file: TemplateFile
    source: str

    @property
    def sha256(self) -> str:
        """Of the templates."""
        return templates_sha256(self.file)


def templates_sha256(file: TemplateFile) -> str:
    """The SHA-256 of a folder's templates."""
    return hashlib.sha256(json.dumps(dict(file.templates), sort_keys=True).encode()).hexdigest()


def template_end_of_turn(file: TemplateFile, tokenizer: Tokenizer) -> AddedToken | None:
    """The special token that a template writes after an answer; None where it writes none."""
    renderer = ChatRenderer(file)
    try:
        return find_end_of_turn(renderer.render, tokenizer)
    finally:
        renderer.close()


def choose_template(given: Path | None, folder: Path, tokenizer: Tokenizer) -> ChosenTemplate:
    """The template to encode with: the one that is given, else that of the tokenizer's folder, else ours.

    Args:
        given: A file with a template, or a folder with some.
        folder: Where the tokenizer was read from: a folder or a file in it.
        tokenizer: The tokenizer.

    Raises:
        TrainerError: A template cannot be read.
        UsageError: There is none in the folder that is given, or the tokenizer lacks what our template writes.
    """
    place = folder if folder.is_dir() else folder.parent
    try:
        if given is not None and not given.is_dir():
            return ChosenTemplate(read_template(given, tokenizer), str(given))
        found = read_templates(place if given is None else given)
    except ChatTemplateError as error:
        raise TrainerError(str(error)) from None
    if found is not None:
        return ChosenTemplate(TemplateFile(found.templates, role_variables(tokenizer)), str(given or place))
    if given is not None:
        raise UsageError(f"{given} has no chat template")
    missing = [token for token in DEFAULT_SPECIAL_TOKENS if token not in tokenizer.special_tokens]
    if missing:
        options = " ".join(f"--special-token '{token}'" for token in ("<|endoftext|>", *DEFAULT_SPECIAL_TOKENS))
        raise UsageError(
            f"the default chat template needs the special tokens {', '.join(DEFAULT_SPECIAL_TOKENS)}, and the "
            f"tokenizer lacks {', '.join(missing)}: train one that has them (vocab {options}), or name a template "
            "that does without (--chat-template)"
        )
    return ChosenTemplate(TemplateFile({"default": DEFAULT_TEMPLATE}, role_variables(tokenizer)), "the default")
