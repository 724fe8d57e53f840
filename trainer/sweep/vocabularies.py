"""A vocabulary and token files for each size, made once and kept in the sweep's folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import TrainerError, UsageError
from trainer.text.sources import total_size
from trainer.tokens.token_file import TokenFile

_VALIDATION_SHARE = "0.05"
_SMALLEST = 257  # the bytes and the end-of-text token

Run = Callable[[Sequence[str], Path], tuple[int, str]]


@dataclass(frozen=True)
class Text:
    """The text that vocabularies and models are trained on.

    Attributes:
        train: Text files, or folders of them.
        validation: The same; where there are none, a twentieth of the documents of `train` is kept for it.
    """

    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()


def check_vocabularies(sizes: Sequence[object], text: Text) -> None:
    """Raise UsageError, or TrainerError about the files, where they cannot be made."""
    for size in sizes:
        if type(size) is not int or size < _SMALLEST:
            raise UsageError(f"vocab_size must be a whole number of at least {_SMALLEST}; got {size!r}")
    if not text.train:
        raise UsageError("varying vocab_size needs the training text: give --text FILE")
    total_size([*text.train, *text.validation])


def make_vocabulary(size: int, text: Text, folder: Path, run: Run) -> Path:
    """Train a vocabulary and encode the text with it, unless both are done.

    Args:
        size: Tokens wanted.
        text: The text.
        folder: For this size.
        run: Runs a command of the trainer, its log at a path; returns exit status and last line.

    Returns:
        The folder of token files.

    Raises:
        TrainerError: a step failed.
    """
    tokens, tokenizer = folder / "tokens", folder / "tokenizer"
    if (tokens / "val.json").is_file() and (tokens / "train.json").is_file():
        return tokens
    files, encode = [str(path) for path in text.train], ["--tokenizer", str(tokenizer), "--output", str(tokens)]
    steps = [["vocab", *files, "--vocab-size", str(size), "--output", str(tokenizer), "--overwrite"]]
    if text.validation:
        steps.append(["encode", *files, *encode, "--overwrite"])
        # Last, since val.json says that all is done.
        steps.append(["encode", *map(str, text.validation), *encode, "--split", "val", "--overwrite"])
    else:
        steps.append(["encode", *files, *encode, "--val-fraction", _VALIDATION_SHARE, "--overwrite"])
    for step in steps:
        status, last_line = run(step, folder / "vocabulary.log")
        if status:
            raise TrainerError(f"cannot make the vocabulary of {size} tokens: {last_line}")
    return tokens


def validation_tokens(tokens: Path) -> int:
    """How many validation tokens a folder of token files has."""
    return TokenFile.open(tokens, "val").manifest.count
