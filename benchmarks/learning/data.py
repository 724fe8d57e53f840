"""The text that all contestants learn from: TinyStories as token files with a vocabulary of 4,096."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.learning.shape import VOCAB_SIZE

_ROOT = Path(__file__).resolve().parent.parent.parent


def prepare(folder: Path) -> Path:
    """Learn the vocabulary and encode both parts of the text, which takes seconds.

    Args:
        folder: For the results.

    Returns:
        The folder of the token files.
    """
    source = Path(os.environ.get("OWNLM_DATA", _ROOT.parent / "shared" / "data"))
    train, validation = source / "tinystories_train.txt", source / "tinystories_valid.txt"
    if not train.exists() or not validation.exists():
        raise SystemExit(f"no {train.name} and {validation.name} in {source}: set OWNLM_DATA, or give --data")
    tokenizer, tokens = folder / "tokenizer", folder / "tokens"
    _trainer("vocab", train, "--vocab-size", VOCAB_SIZE, "--output", tokenizer)
    _trainer("encode", train, "--tokenizer", tokenizer, "--output", tokens)
    _trainer("encode", validation, "--tokenizer", tokenizer, "--output", tokens, "--split", "val")
    return tokens


def _trainer(*arguments: object) -> None:
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=_ROOT, stdin=subprocess.DEVNULL)
