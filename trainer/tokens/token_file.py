"""Reading token files: a flat array of ids, and a JSON manifest that describes it.

One of conversations has a second array beside it, NAME.mask: a byte for each id, 1 where the loss counts it and else 0.

They are read, never mapped: truncating a file while it is mapped kills the process with SIGBUS, and mapped pages count
as memory of the process.
"""

import hashlib
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.tokens.manifest import Manifest, MaskManifest, Source, TokenFileError, dtype_for, read_manifest

__all__ = [
    "MASK_SUFFIX",
    "Ids",
    "Manifest",
    "Mask",
    "MaskManifest",
    "Source",
    "TokenFile",
    "TokenFileError",
    "dtype_for",
    "refuse_existing",
]

Ids = npt.NDArray[np.unsignedinteger[Any]]

Mask = npt.NDArray[np.uint8]
"""1 for each token that the loss counts, else 0."""

MASK_SUFFIX = ".mask"
_BLOCK_IDS = 1 << 20


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
        self._descriptor = self._open(path)
        self._mask = None if manifest.mask is None else self._open(path.with_suffix(MASK_SUFFIX))

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
        manifest = read_manifest(path.with_suffix(".json"))
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
        _check_size(path, manifest.count, dtype.itemsize)
        if manifest.mask is not None:
            _check_size(path.with_suffix(MASK_SUFFIX), manifest.count, 1)
        try:
            return cls(path, manifest)
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None

    def verify(self) -> None:
        """Read the whole file once.

        Raises:
            TokenFileError: See `read`; or the ids are not those that were written.
        """
        found, found_mask = hashlib.sha256(), hashlib.sha256()
        for start, ids in self._starts_and_blocks():
            found.update(ids.data)
            if self.manifest.mask is not None:
                found_mask.update(self.read_mask(start, start + len(ids)).data)
        self._check_sum(self.path, found.hexdigest(), self.manifest.sha256)
        if self.manifest.mask is not None:
            self._check_sum(self.path.with_suffix(MASK_SUFFIX), found_mask.hexdigest(), self.manifest.mask.sha256)

    @staticmethod
    def _check_sum(path: Path, found: str, wanted: str) -> None:
        if found != wanted:
            raise TokenFileError(
                f"{path} is not what was written: its SHA-256 is {found}, its manifest says {wanted}; encode the text "
                "again"
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
        ids: Ids = np.frombuffer(self._bytes(self.path, self._descriptor, start, stop, self.dtype.itemsize), self.dtype)
        if len(ids) and ids.max() >= self.manifest.vocab_size:
            place = int((ids >= self.manifest.vocab_size).argmax())
            raise TokenFileError(
                f"{self.path}: token {start + place} is {ids[place]}, beyond a vocabulary of "
                f"{self.manifest.vocab_size}; encode the text again"
            )
        return ids

    def read_mask(self, start: int, stop: int) -> Mask:
        """Which of the same tokens the loss counts: all, where there is no mask.

        Raises:
            TokenFileError: As in `read`; or a byte is neither 0 nor 1.
        """
        if self._mask is None:
            return np.ones(stop - start, np.uint8)
        path = self.path.with_suffix(MASK_SUFFIX)
        mask: Mask = np.frombuffer(self._bytes(path, self._mask, start, stop, 1), np.uint8)
        if len(mask) and mask.max() > 1:
            place = int((mask > 1).argmax())
            raise TokenFileError(f"{path}: byte {start + place} is {mask[place]}, not 0 or 1; encode the text again")
        return mask

    def blocks(self, stop: int | None = None) -> Iterator[Ids]:
        """All ids, or those before `stop`, a part at a time."""
        return (ids for _, ids in self._starts_and_blocks(stop))

    def masked_blocks(self, stop: int | None = None) -> Iterator[tuple[Ids, Mask]]:
        """The same, each with its mask."""
        return ((ids, self.read_mask(start, start + len(ids))) for start, ids in self._starts_and_blocks(stop))

    def _starts_and_blocks(self, stop: int | None = None) -> Iterator[tuple[int, Ids]]:
        end = len(self) if stop is None else min(stop, len(self))
        for start in range(0, end, _BLOCK_IDS):
            yield start, self.read(start, min(start + _BLOCK_IDS, end))

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @staticmethod
    def _bytes(path: Path, descriptor: int, start: int, stop: int, size: int) -> bytes:
        """The bytes of the items `start` to before `stop`."""
        wanted = (stop - start) * size
        try:
            data = os.pread(descriptor, wanted, start * size)
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) < wanted:
            raise TokenFileError(f"{path} was cut short while it was read: it has fewer than {stop:,} tokens now")
        return data


def _check_size(path: Path, count: int, itemsize: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
    if size != count * itemsize or not size:
        raise TokenFileError(
            f"{path} has {size} bytes, but its manifest says {count} tokens of {itemsize} bytes, and there must be at "
            "least one; encode the text again"
        )


def refuse_existing(folder: Path, names: Sequence[str], suffixes: Sequence[str] = ("bin", "mask", "json")) -> None:
    """Raise a TokenFileError if one of these token files, or the part of it with a suffix, exists."""
    for path in (folder / f"{name}.{suffix}" for name in names for suffix in suffixes):
        if path.exists():
            raise TokenFileError(f"{path} exists; choose another --output, or replace it with --overwrite")
