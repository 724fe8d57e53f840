"""Reading and writing whole files, with errors for people."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import orjson

from shared.bpe.errors import TokenizerError
from shared.bpe.formats.foreign_files import known_kind
from shared.system.errors import shown
from shared.system.regular_file import read_regular

_LARGEST = 256 << 20  # bytes; the largest known tokenizer.json has 35 million


def read_text(path: Path) -> str:
    """A file as UTF-8, newlines untouched.

    Raises:
        TokenizerError: If it cannot be read, is no regular file, larger than 256 MiB or not UTF-8; names path and byte.
    """
    try:
        data = read_regular(path, _LARGEST)
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
        TokenizerError: If it cannot be read, is not JSON, not an object, or has a key twice.
    """
    text = read_text(path)
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        kind = known_kind(text.encode(), expects_json=True)
        problem = kind or f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        raise TokenizerError(f"{path} {problem}") from None
    except _DuplicateKeyError as error:
        raise TokenizerError(f"{path} has the key {shown(error.args[0])} twice in one object") from None
    except RecursionError:
        raise TokenizerError(f"{path} is nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise TokenizerError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def to_json(content: object) -> str:
    """JSON in the one form that our files have."""
    try:
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    except TypeError:  # the name of a file that is not UTF-8, which Python has as lone surrogates
        return json.dumps(content, indent=2) + "\n"


def write_text(path: Path, content: str) -> None:
    """Write a file as a whole or not at all: under a temporary name, synced, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a model folder is read by other users too.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write does not say of which file
            error.filename = str(path)
        raise


class _DuplicateKeyError(ValueError):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return content
