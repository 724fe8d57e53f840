"""SHA-256 checksums of a folder's files, in a file beside them: they detect damage and changes. No torch."""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.system.regular_file import open_regular, read_regular

CHECKSUMS_FILE = "checksums.json"
CARD_FILE = "README.md"
CURVES_FILE = "curves.svg"
EVALUATIONS_FILE = "evaluations.json"
"""This, the card and its picture are not checked: they decide nothing, and are changed after the model was written."""

_BLOCK_BYTES = 1 << 20
_LARGEST_SMALL = 256 << 20  # bytes of a file that is read whole
_LARGE = (".safetensors", ".pt")  # verified when they are read, not with the small files


class ChecksumError(ValueError):
    """A folder differs from its checksums."""


@dataclass(frozen=True)
class Checksums:
    """The checksums of a folder.

    Attributes:
        folder: The folder.
        sums: SHA-256 in hexadecimal by file name; None for a folder without checksums, as from other programs.
    """

    folder: Path
    sums: Mapping[str, str] | None

    @classmethod
    def read(cls, folder: Path) -> "Checksums":
        """Read a folder's `checksums.json`.

        Raises:
            ChecksumError: It exists but is not a list of checksums.
        """
        file = folder / CHECKSUMS_FILE
        try:
            sums = json.loads(read_regular(file, _LARGEST_SMALL))["sha256"]
        except FileNotFoundError:
            return cls(folder, None)
        except OSError as error:
            raise ChecksumError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ChecksumError(f"{file} is not a list of checksums ({error})") from None
        if not isinstance(sums, dict) or not all(isinstance(sum_, str) for sum_ in sums.values()):
            raise ChecksumError(f"{file} is not a list of checksums: it must map file names to SHA-256 sums")
        if outside := [name for name in sums if Path(name).name != name]:
            raise ChecksumError(f"{file} lists {outside[0]!r}, which is not the name of a file beside it")
        return cls(folder, sums)

    def verify(self, name: str, descriptor: int | None = None) -> None:
        """Compare one file with its checksum, if the folder has checksums.

        Args:
            name: The name of the file.
            descriptor: The file, if it is open already; its position does not change.

        Raises:
            ChecksumError: Names the file and the fault.
        """
        if self.sums is None:
            return
        file = self.folder / name
        if name not in self.sums:
            raise ChecksumError(f"{file} is not listed in {CHECKSUMS_FILE}: it was added later")
        try:
            limit = sys.maxsize if name.endswith(_LARGE) else _LARGEST_SMALL
            found = file_sha256(file, limit) if descriptor is None else _sha256_of_open(descriptor)
        except OSError as error:
            raise ChecksumError(f"{file}, which {CHECKSUMS_FILE} lists, cannot be read: {error.strerror}") from None
        if found != self.sums[name]:
            raise ChecksumError(
                f"{file} is not what was written: its SHA-256 is {found}, not {self.sums[name]}; restore the file, or "
                f"delete {CHECKSUMS_FILE} if it was changed on purpose"
            )

    def verify_small_files(self) -> None:
        """Compare all listed files except weights and training state, which are large and verified when they are read.

        Raises:
            ChecksumError: Names the file and the fault.
        """
        for name in self.sums or ():
            if not name.endswith(_LARGE):
                self.verify(name)


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files in a folder except those that may change, as the last of its files."""
    unlisted = (CHECKSUMS_FILE, CARD_FILE, CURVES_FILE, EVALUATIONS_FILE)
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in unlisted)
    text = json.dumps({"sha256": {path.name: file_sha256(path) for path in files}}, indent=2)
    (folder / CHECKSUMS_FILE).write_text(text + "\n", encoding="utf-8")


def file_sha256(path: Path, limit: int = sys.maxsize) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: It cannot be read, or has more bytes than `limit`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than the limit of {limit:,} bytes", str(path))
        return _sha256_of_open(file.fileno())


def _sha256_of_open(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(descriptor, _BLOCK_BYTES, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()
