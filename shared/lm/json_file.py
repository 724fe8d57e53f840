"""The small JSON files of a model folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.lm.errors import ModelFolderError
from shared.system.files import parse_json_object
from shared.system.regular_file import read_regular

_MAX_BYTES = 16 << 20  # an index of a thousand shards has 1 or 2 million


def read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; a missing optional file counts as an empty one.

    Raises:
        ModelFolderError: The file is missing, cannot be read, exceeds 16 MiB, or is not a JSON object.
    """
    try:
        return parse_json_object(read_regular(file, _MAX_BYTES))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelFolderError(f"{file}: the file is missing") from None
    except OSError as error:
        raise ModelFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFolderError(f"{file}: {error}") from error


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write an indented JSON object in UTF-8.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")
