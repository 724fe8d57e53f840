"""Small JSON files, read and written with errors for people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.lm.errors import ModelFolderError
from shared.system.errors import shown_name
from shared.system.regular_file import read_regular

_LARGEST = 16 << 20  # bytes; an index of a thousand shards has 1 or 2 million


def read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; an absent optional file is an empty one.

    Raises:
        ModelFolderError: The file is missing, cannot be read, is larger than 16 MiB, or holds something else.
    """
    try:
        content = json.loads(read_regular(file, _LARGEST))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelFolderError(f"{file}: the file is missing") from None
    except OSError as error:
        raise ModelFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{file}: cannot be read as JSON ({shown_name(str(error))})") from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{file}: must hold a JSON object, got {type(content).__name__}")
    return content


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object for people: indented, in UTF-8, numbers finite."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")
