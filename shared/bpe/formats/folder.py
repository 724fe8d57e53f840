"""Which file of a folder to open."""

from pathlib import Path

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.foreign_files import known_kind

# Of files that people take for a tokenizer.
_OTHERS = {".bpe", ".gguf", ".model", ".pickle", ".pkl", ".tiktoken"}


def main_file(folder: Path) -> Path:
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
