"""Text and JSON, read and written as whole files."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from shared.system.errors import short_repr


def parse_json_object(data: str | bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: The rest of a sentence that begins with the name of the file, such as "is not JSON: line 1, ...".

    >>> parse_json_object('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: has the key 'a' twice in one object
    """
    try:
        content = json.loads(data, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    except _DuplicateKeyError as error:
        raise ValueError(f"has the key {short_repr(error.args[0])} twice in one object") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise ValueError(f"cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"must hold a JSON object, not {type(content).__name__}")  # noqa: TRY004  # bad data, not a bad call
    return content


def to_json(content: object) -> str:
    """JSON as this package writes it: indented by two spaces, with a newline at the end."""
    return to_json_bytes(content).decode()


def to_json_bytes(content: object) -> bytes:
    """The UTF-8 of `to_json`."""
    try:
        return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a file name that is not UTF-8, which Python represents with lone surrogates
        return json.dumps(content, indent=2).encode() + b"\n"


def write_text(path: Path, content: str) -> None:
    """Write a whole file or nothing, as `write_bytes`."""
    write_bytes(path, content.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing, as `replaced_file`."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling to write, which becomes `path`, synced to the disk, unless the body raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes private files; a model folder is read by other users too.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, name):  # a failed write does not name the file
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
