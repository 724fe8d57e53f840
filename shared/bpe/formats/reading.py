"""Reading the files of a tokenizer, with errors that say what a file is instead."""

from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.foreign_files import known_kind
from shared.system.files import parse_json_object
from shared.system.regular_file import open_regular, read_regular

_MAX_BYTES = 256 << 20  # the largest known tokenizer.json has 35 million

# Suffixes of files that are often mistaken for a tokenizer.
_OTHER_SUFFIXES = {".bpe", ".gguf", ".model", ".pickle", ".pkl", ".tiktoken"}


def read_text(path: Path) -> str:
    """A file as UTF-8, newlines unchanged.

    Raises:
        TokenizerError: It cannot be read, is not a regular file, exceeds 256 MiB or is not UTF-8; names path and byte.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from None
    if kind := known_kind(data):
        raise TokenizerError(f"{path} {kind}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        TokenizerError: It cannot be read, is not JSON, not an object, or has a key twice.
    """
    text = read_text(path)
    try:
        return parse_json_object(text)
    except ValueError as error:
        raise TokenizerError(f"{path} {known_kind(text.encode(), expects_json=True) or error}") from None


def main_file(folder: Path) -> Path:
    """The tokenizer.json of a folder, or else its vocab.json.

    Raises:
        TokenizerError: There is neither; says what is there instead.
    """
    for name in ("tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            return folder / name
    others = (path for path in sorted(folder.iterdir()) if path.suffix in _OTHER_SUFFIXES and path.is_file())
    kinds = (f"; {path.name} {kind}" for path in others if (kind := known_kind(_start_of(path), expects_json=True)))
    raise TokenizerError(f"{folder} has neither a tokenizer.json nor a vocab.json{next(kinds, '')}")


def _start_of(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read(1 << 10)
