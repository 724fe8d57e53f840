"""Reading token files: a flat array of ids, and a JSON manifest that describes it.

They are read, never mapped: truncating a file while it is mapped kills the process with SIGBUS, and mapped pages count
as memory of the process.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.errors import TrainerError

Ids = npt.NDArray[np.unsignedinteger[Any]]

VERSION = 1
_BLOCK_IDS = 1 << 20


class TokenFileError(TrainerError):
    """A token file that is missing, damaged, already there, or made with another tokenizer."""


@dataclass(frozen=True)
class Source:
    """A text file that tokens came from.

    Attributes:
        path: As it was given.
        bytes: Its size, compressed if it is compressed.
        sha256: Of these bytes.
        documents: Documents found in it.
        ends_with_separator: Whether it ends with a separator. If not, no separator belongs to its last end-of-text id.
    """

    path: str
    bytes: int
    sha256: str
    documents: int
    ends_with_separator: bool


@dataclass(frozen=True)
class Manifest:
    """The manifest of a token file.

    Attributes:
        version: Of this format.
        dtype: `uint16` up to a vocabulary of 65,536, else `uint32`; little-endian.
        count: Tokens, the end-of-text ids included.
        documents: Documents, each followed by one end-of-text id.
        vocab_size: The tokenizer's highest id plus one.
        fingerprint: The tokenizer's.
        end_of_text_id: The id after each document.
        bytes: Bytes of text that the tokens stand for, without the end-of-text ids.
        sha256: Of the array.
        sources: The text files that were encoded; two splits of one pass name the same.
    """

    version: int
    dtype: str
    count: int
    documents: int
    vocab_size: int
    fingerprint: str
    end_of_text_id: int
    bytes: int
    sha256: str
    sources: tuple[Source, ...]


class TokenFile:
    """A token file, open for reading; it stays the same file if another one replaces it on disk.

    Attributes:
        path: The array's path.
        manifest: Its manifest.
        dtype: Of the ids.

    Args:
        path: The array's path.
        manifest: Its manifest.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.dtype = dtype_for(manifest.vocab_size)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def open(cls, folder: str | Path, name: str, *, fingerprint: str | None = None) -> "TokenFile":
        """Open FOLDER/NAME.bin, checked against its manifest FOLDER/NAME.json.

        Args:
            folder: The folder.
            name: The split, such as "train".
            fingerprint: That of the tokenizer that the tokens must come from, if any.

        Raises:
            TokenFileError: If either file is missing or they do not fit together, or the tokenizer is another one.
        """
        path = Path(folder) / f"{name}.bin"
        manifest = _read_manifest(path.with_suffix(".json"))
        if fingerprint is not None and fingerprint != manifest.fingerprint:
            raise TokenFileError(
                f"{path} was made with another tokenizer, with fingerprint {manifest.fingerprint}; the one in use has "
                f"{fingerprint}; encode the text again"
            )
        dtype = dtype_for(manifest.vocab_size)
        if manifest.dtype != dtype.name:
            raise TokenFileError(
                f"the manifest {path.with_suffix('.json')} is damaged: dtype is {manifest.dtype!r}, but tokens of a "
                f"vocabulary of {manifest.vocab_size} are {dtype.name}; encode the text again"
            )
        try:
            size = path.stat().st_size
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
        if size != manifest.count * dtype.itemsize or not size:
            raise TokenFileError(
                f"{path} has {size} bytes, but its manifest says {manifest.count} tokens of {dtype.itemsize} bytes, "
                "and there must be at least one; encode the text again"
            )
        try:
            return cls(path, manifest)
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None

    def verify(self) -> None:
        """Read the whole file once.

        Raises:
            TokenFileError: See `read`; or the ids are not those that were written.
        """
        found = hashlib.sha256()
        for block in self.blocks():
            found.update(block.data)
        if found.hexdigest() != self.manifest.sha256:
            raise TokenFileError(
                f"{self.path} is not what was written: its SHA-256 is {found.hexdigest()}, its manifest says "
                f"{self.manifest.sha256}; encode the text again"
            )

    def __len__(self) -> int:
        """The number of ids."""
        return self.manifest.count

    @property
    def tokens(self) -> Ids:
        """All ids, in memory at once."""
        return np.concatenate(list(self.blocks()))

    def read(self, start: int, stop: int) -> Ids:
        """The ids from `start` to before `stop`, both within the file; read-only.

        Raises:
            TokenFileError: If the file was changed since it was opened: it is shorter, cannot be read any more, or has
                an id beyond the vocabulary (names its index).
        """
        wanted = (stop - start) * self.dtype.itemsize
        try:
            data = os.pread(self._descriptor, wanted, start * self.dtype.itemsize)
        except OSError as error:
            raise TokenFileError(f"{self.path} cannot be read: {error.strerror}") from None
        if len(data) < wanted:
            raise TokenFileError(f"{self.path} was cut short while it was read: it has fewer than {stop:,} tokens now")
        ids = np.frombuffer(data, self.dtype)
        if len(ids) and ids.max() >= self.manifest.vocab_size:
            place = int((ids >= self.manifest.vocab_size).argmax())
            raise TokenFileError(
                f"{self.path}: token {start + place} is {ids[place]}, beyond a vocabulary of "
                f"{self.manifest.vocab_size}; encode the text again"
            )
        return ids

    def blocks(self, stop: int | None = None) -> Iterator[Ids]:
        """All ids, or those before `stop`, a part at a time."""
        end = len(self) if stop is None else min(stop, len(self))
        for start in range(0, end, _BLOCK_IDS):
            yield self.read(start, min(start + _BLOCK_IDS, end))


def dtype_for(vocab_size: int) -> "np.dtype[np.unsignedinteger[Any]]":
    """The smaller of uint16 and uint32 that can hold ids below `vocab_size`, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def refuse_existing(folder: Path, names: Sequence[str], suffixes: Sequence[str] = ("bin", "json")) -> None:
    """Raise a TokenFileError if one of these token files, or the part of it with a suffix, exists."""
    for path in (folder / f"{name}.{suffix}" for name in names for suffix in suffixes):
        if path.exists():
            raise TokenFileError(f"{path} exists; choose another --output, or replace it with --overwrite")


def _read_manifest(path: Path) -> Manifest:
    try:
        content = json.loads(read_regular(path, LARGEST_RECORD))
    except OSError as error:
        raise TokenFileError(
            f"the manifest {path} cannot be read: {error.strerror}; encode the text first (for an array made "
            "elsewhere: encode --manifest-for)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TokenFileError(f"the manifest {path} is not JSON: {error}; encode the text again") from None
    try:
        if content["version"] != VERSION:
            raise TokenFileError(
                f"the manifest {path} has version {content['version']!r}; this program reads {VERSION}; encode the "
                "text again"
            )
        manifest = Manifest(**{**content, "sources": tuple(Source(**source) for source in content["sources"])})
    except (KeyError, TypeError) as error:
        raise TokenFileError(f"the manifest {path} is damaged: {error}; encode the text again") from None
    for key in ("count", "documents", "vocab_size", "end_of_text_id", "bytes"):
        value = getattr(manifest, key)
        if type(value) is not int or value < 0:
            raise TokenFileError(
                f"the manifest {path} is damaged: {key} is {value!r}, not a non-negative integer; encode the text again"
            )
    return manifest
