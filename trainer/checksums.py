"""SHA-256 sums of a folder's files, in a file beside them: whether the folder is what was written."""

import hashlib
import json
from pathlib import Path

from shared.bpe.files import to_json
from trainer.errors import TrainerError

CHECKSUMS_FILE = "checksums.json"


class ChecksumError(TrainerError):
    """A folder that is not what was written."""


def write_checksums(folder: Path) -> None:
    """Write down the sums of all files in a folder; it is complete with that."""
    sums = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != CHECKSUMS_FILE}
    (folder / CHECKSUMS_FILE).write_text(to_json({"sha256": sums}), encoding="utf-8")


def verify_checksums(folder: Path) -> None:
    """Compare a folder's files with their sums; files that were added are not looked at.

    Raises:
        ChecksumError: names the file and the fault.
    """
    file = folder / CHECKSUMS_FILE
    try:
        sums = json.loads(file.read_bytes())["sha256"].items()
    except FileNotFoundError:
        raise ChecksumError(f"{file} is missing: it is lost, or an earlier release wrote the folder") from None
    except OSError as error:
        raise ChecksumError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChecksumError(f"{file} is no list of checksums ({error})") from None
    for name, expected in sums:
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise ChecksumError(f"{folder / name} cannot be read: {error.strerror}") from None
        if found != expected:
            raise ChecksumError(f"{folder / name} is not what was written: its SHA-256 is {found}, not {expected}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
