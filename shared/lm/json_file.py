"""Small JSON files, read and written with errors for people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.lm.errors import ModelFolderError


def read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; an absent optional file is an empty one.

    Raises:
        ModelFolderError: The file is missing or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelFolderError(f"{file}: the file is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFolderError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{file}: must hold a JSON object, got {type(content).__name__}")
    return content


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people: indented, in UTF-8, numbers finite."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")
