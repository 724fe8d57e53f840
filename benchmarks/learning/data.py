"""The text that all contestants learn from: TinyStories as token files with a vocabulary of 4,096."""

import subprocess
import sys
from pathlib import Path

from benchmarks.inputs import reference_texts
from benchmarks.learning.shape import VOCAB_SIZE
from shared.bpe import TokenizerError
from trainer.errors import TrainerError
from trainer.tokens.dataset import open_training_data

_ROOT = Path(__file__).resolve().parent.parent.parent


def prepare(folder: Path) -> Path:
    """Learn the vocabulary and encode both parts of the text, which takes seconds.

    Args:
        folder: For the results.

    Returns:
        The folder of the token files.
    """
    train, validation = reference_texts("tinystories_train.txt", "tinystories_valid.txt", otherwise=", or give --data")
    tokenizer, tokens = folder / "tokenizer", folder / "tokens"
    _trainer("vocab", train, "--vocab-size", VOCAB_SIZE, "--output", tokenizer)
    _trainer("encode", train, "--tokenizer", tokenizer, "--output", tokens)
    _trainer("encode", validation, "--tokenizer", tokenizer, "--output", tokens, "--split", "val")
    return tokens


def check(folder: Path) -> Path:
    """The folder, if its token files are whole and of a vocabulary of the size that all models have.

    Raises:
        SystemExit: they are not.
    """
    try:
        size = open_training_data(folder).tokenizer.vocab_size
    except (TrainerError, TokenizerError) as error:
        raise SystemExit(str(error)) from None
    if size != VOCAB_SIZE:
        raise SystemExit(f"{folder} has a vocabulary of {size:,} tokens, and the models have one of {VOCAB_SIZE:,}")
    return folder


def _trainer(*arguments: object) -> None:
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=_ROOT, stdin=subprocess.DEVNULL)
