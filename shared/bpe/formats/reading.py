"""Reading the files of a tokenizer, with errors that say what a file is instead."""

from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.foreign_files import known_kind
from shared.system.files import parse_json_object
from shared.system.regular_file import read_regular

_MAX_BYTES = 256 << 20  # the largest known tokenizer.json has 35 million


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
