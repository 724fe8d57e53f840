"""What a folder or file holds of a tokenizer, whichever its format is."""

from pathlib import Path

from shared.bpe.errors import TokenizerError
from shared.bpe.formats import gpt2 as gpt2_files
from shared.bpe.formats import tokenizer_json
from shared.bpe.formats.foreign_files import known_kind
from shared.bpe.vocabulary import Vocabulary

# Of files that people take for a tokenizer.
_OTHERS = {".bpe", ".gguf", ".model", ".pickle", ".pkl", ".tiktoken"}


def read_vocabulary(path: Path, merges_path: Path | None = None) -> Vocabulary:
    """Read a folder with tokenizer.json (or vocab.json and merges.txt), one tokenizer.json, or GPT-2's two files.

    The folder's checksums are not looked at: see `Tokenizer.from_files`.

    Raises:
        TokenizerError: If a file is missing, damaged, or describes a tokenizer that would not be matched exactly.
    """
    if path.is_dir():
        path = _main_file(path)
    if merges_path is None and path.name == "vocab.json":
        merges_path = path.with_name("merges.txt")
    return tokenizer_json.read(path) if merges_path is None else gpt2_files.read(path, merges_path)


def _main_file(folder: Path) -> Path:
    """The tokenizer.json of a folder, or else its vocab.json.

    Raises:
        TokenizerError: If there is neither; says what is there instead.
    """
    for name in ("tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            return folder / name
    others = (path for path in sorted(folder.iterdir()) if path.suffix in _OTHERS and path.is_file())
    kinds = (f"; {path.name} {kind}" for path in others if (kind := known_kind(_start(path), expects_json=True)))
    raise TokenizerError(
        f"{folder} holds no tokenizer: there is neither a tokenizer.json nor a vocab.json{next(kinds, '')}"
    )


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1 << 10)
