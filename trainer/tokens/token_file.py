"""Reading token files: shards of ids, and a JSON manifest that describes them; or one file, of earlier versions.

Those of conversations have a second array beside each, NAME.mask: a byte for each id, 1 where the loss counts it and
else 0.

They are read, never mapped: truncating a file while it is mapped kills the process with SIGBUS, and mapped pages count
as memory of the process.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from trainer.storage.cache import copy_verified, local_copy
from trainer.storage.remote import url_of
from trainer.tokens.manifest import HASH, Manifest, Source, TokenFileError, dtype_for, read_manifest
from trainer.tokens.sharded_array import ShardedArray

__all__ = [
    "MASK_SUFFIX",
    "Ids",
    "Manifest",
    "Mask",
    "Source",
    "TokenFile",
    "TokenFileError",
    "dtype_for",
    "is_token_file",
    "mask_file",
]

Ids = npt.NDArray[np.unsignedinteger[Any]]

Mask = npt.NDArray[np.uint8]
"""1 for each token that the loss counts, else 0."""

_Array = TypeVar("_Array", bound=Ids)

MASK_SUFFIX = ".mask"
_BLOCK_IDS = 1 << 20
_HASHES: dict[str, Callable[[], Any]] = {HASH: xxhash.xxh3_128, "sha256": hashlib.sha256}


class TokenFile:
    """The shards of a split, open for reading as one array; they stay the same if others replace them on disk.

    Attributes:
        path: The manifest's path.
        manifest: The manifest.
        dtype: Of the ids.

    Args:
        folder: Where the shards are.
        name: The split, such as "train".
        manifest: The manifest.

    Raises:
        TokenFileError: A shard cannot be opened, or has another size than the manifest says.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest) -> None:
        self.path = folder / f"{name}.json"
        self.manifest = manifest
        self.dtype = dtype_for(manifest.vocab_size)
        counts = [shard.count for shard in manifest.shards]
        files = [folder / shard.file for shard in manifest.shards]
        self._ids = ShardedArray(files, counts, self.dtype.itemsize)
        self._mask = ShardedArray([Path(mask_file(file)) for file in files], counts, 1) if manifest.has_mask else None

    @classmethod
    def open(cls, folder: str | Path, name: str, *, fingerprint: str | None = None) -> "TokenFile":
        """Open the shards that the manifest FOLDER/NAME.json names. From an object store they are copied first.

        Args:
            folder: The folder.
            name: The split, such as "train".
            fingerprint: That of the tokenizer that the tokens must come from, if any.

        Raises:
            TokenFileError: If a file is missing or they do not fit together, or the tokenizer is another one.
        """
        return cls.open_copy(local_copy(Path(folder)), Path(folder), name, fingerprint=fingerprint)

    @classmethod
    def open_copy(cls, folder: Path, given: Path, name: str, *, fingerprint: str | None = None) -> "TokenFile":
        """Open the shards of `given`, of which `folder` is the `local_copy`, as `open` does."""
        path = folder / f"{name}.json"
        manifest = read_manifest(path)
        if fingerprint is not None and fingerprint != manifest.fingerprint:
            raise TokenFileError(
                f"{path} was made with another tokenizer, with fingerprint {manifest.fingerprint}; the one in use has "
                f"{fingerprint}; encode the text again"
            )
        dtype = dtype_for(manifest.vocab_size)
        if manifest.dtype != dtype.name:
            raise TokenFileError(
                f"the manifest {path} is damaged: dtype is {manifest.dtype!r}, but tokens of a "
                f"vocabulary of {manifest.vocab_size} are {dtype.name}; encode the text again"
            )
        if not manifest.count:
            raise TokenFileError(
                f"the manifest {path} has no tokens: there must be at least one; encode the text again"
            )
        if url_of(given) is not None:
            copy_verified(given, _hashes(manifest), partial(_hash_of, manifest.hash))
        return cls(folder, name, manifest)

    @classmethod
    def open_path(cls, path: Path, *, fingerprint: str | None = None) -> "TokenFile":
        """Open what a command line names: the manifest NAME.json, or NAME.bin for the same.

        Raises:
            TokenFileError: As in `open`.
        """
        whole = path.stem.rpartition("-")[0]
        if whole and not path.with_suffix(".json").exists() and path.with_name(f"{whole}.json").exists():
            raise TokenFileError(f"{path} is one of several shards; name their manifest, {whole}.json")
        return cls.open(path.parent, path.stem, fingerprint=fingerprint)

    def verify(self) -> None:
        """Read all of it once.

        Raises:
            TokenFileError: See `read`; or the ids are not those that were written.
        """
        start = 0
        for number, shard in enumerate(self.manifest.shards):
            found, found_mask = _HASHES[self.manifest.hash](), _HASHES[self.manifest.hash]()
            for begin in range(start, start + shard.count, _BLOCK_IDS):
                end = min(begin + _BLOCK_IDS, start + shard.count)
                found.update(self.read(begin, end).data)
                if self._mask is not None:
                    found_mask.update(self.read_mask(begin, end).data)
            self._check_sum(self._ids.paths[number], found.hexdigest(), shard.hash)
            if self._mask is not None:
                self._check_sum(self._mask.paths[number], found_mask.hexdigest(), shard.mask_hash)
            start += shard.count

    def _check_sum(self, path: Path, found: str, wanted: str | None) -> None:
        if found != wanted:
            raise TokenFileError(
                f"{path} is not what was written: its {self.manifest.hash} is {found}, its manifest says {wanted}; "
                "encode the text again"
            )

    def __len__(self) -> int:
        """The number of ids."""
        return self.manifest.count

    @property
    def tokens(self) -> Ids:
        """All ids, in memory at once."""
        return np.concatenate([np.empty(0, self.dtype), *self.blocks()])

    def shard_at(self, place: int) -> tuple[int, int]:
        """The number of the shard that an id is in, and that of its first id."""
        [span] = self._ids.shard_ranges(place, place + 1)
        return span.shard, place - span.begin

    def read(self, start: int, stop: int) -> Ids:
        """The ids from `start` to before `stop`, both within the array; read-only.

        Raises:
            TokenFileError: If a shard was changed since it was opened: it is shorter, cannot be read any more, or has
                an id beyond the vocabulary (names its index).
        """
        parts: list[Ids] = []
        for span in self._ids.shard_ranges(start, stop):
            ids: Ids = np.frombuffer(self._ids.read(span), self.dtype)
            if ids.max() >= self.manifest.vocab_size:
                place = int((ids >= self.manifest.vocab_size).argmax())
                raise TokenFileError(
                    f"{self._ids.paths[span.shard]}: token {span.begin + place} is {ids[place]}, beyond a "
                    f"vocabulary of {self.manifest.vocab_size}; encode the text again"
                )
            parts.append(ids)
        return _joined(parts, self.dtype)

    def read_mask(self, start: int, stop: int) -> Mask:
        """Which of the same tokens the loss counts: all, where there is no mask.

        Raises:
            TokenFileError: As in `read`; or a byte is neither 0 nor 1.
        """
        if self._mask is None:
            return np.ones(stop - start, np.uint8)
        parts: list[Mask] = []
        for span in self._mask.shard_ranges(start, stop):
            mask: Mask = np.frombuffer(self._mask.read(span), np.uint8)
            if mask.max() > 1:
                place = int((mask > 1).argmax())
                raise TokenFileError(
                    f"{self._mask.paths[span.shard]}: byte {span.begin + place} is {mask[place]}, not 0 or 1; "
                    "encode the text again"
                )
            parts.append(mask)
        return _joined(parts, np.dtype(np.uint8))

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


def _hashes(manifest: Manifest) -> dict[str, str]:
    """Of all files that a manifest names."""
    masks = {mask_file(shard.file): shard.mask_hash for shard in manifest.shards if shard.mask_hash is not None}
    return {shard.file: shard.hash for shard in manifest.shards} | masks


def _hash_of(kind: str, path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _HASHES[kind]).hexdigest()


def mask_file(shard: str | Path) -> str:
    """The mask of a shard."""
    return f"{str(shard).removesuffix('.bin')}{MASK_SUFFIX}"


def is_token_file(path: Path) -> bool:
    """Whether a command line names token files by this: their manifest, or NAME.bin."""
    return path.suffix in {".json", ".bin"}


def _joined(parts: Sequence[_Array], dtype: "np.dtype[np.unsignedinteger[Any]]") -> _Array:
    """What was read, without a copy where it comes from one file."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)  # type: ignore[return-value]
