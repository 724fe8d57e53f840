"""The manifest of token files: the shards, what is in them, and what they were made from."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.errors import TrainerError

VERSION = 3
VERSION_WITH_MASK = 4
"""A program that knows no masks must not take such files for some without."""

HASH = "xxh3_128"
"""What new manifests contain of each shard and text: XXH3 with 128 bits.

It finds damage at the speed of memory, ten times that of SHA-256, which took a tenth of the time from text to token
file. It is not a signature: write access to the shards is write access to the manifest beside them.
"""
_OLD_HASH = "sha256"
_OLD_VERSIONS = {1: False, 2: True}
"""Versions for one file NAME.bin, and whether it has a mask."""


class TokenFileError(TrainerError):
    """A token file that is missing, damaged, already there, or made with another tokenizer."""


@dataclass(frozen=True)
class Source:
    """A text file that tokens came from.

    Attributes:
        path: As it was given.
        bytes: Its size, compressed if it is compressed.
        hash: Of its text, decompressed; of records, of their texts one after the other. Of a text in several parts, of
            the hashes of these, one after the other.
        documents: Documents found in it.
        ends_with_separator: Whether it ends with a separator. If not, no separator belongs to its last end-of-text id.
    """

    path: str
    bytes: int
    hash: str
    documents: int
    ends_with_separator: bool


@dataclass(frozen=True)
class Shard:
    """A file of ids. A document of at most `shard_tokens` is not divided.

    Attributes:
        file: Its name, beside the manifest.
        part: Number of the part of the text that it was made from, see `parts`.
        count: Tokens, the end-of-text ids included.
        documents: Documents that end in it.
        bytes: Bytes of text that the tokens stand for, without the end-of-text ids.
        hash: Of the file.
        counted: Tokens that the loss counts; None for a file without a mask, each token of which counts.
        mask_hash: Of the mask.
    """

    file: str
    part: int
    count: int
    documents: int
    bytes: int
    hash: str
    counted: int | None = None
    mask_hash: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """What a manifest has of it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Manifest:
    """The manifest of token files.

    Attributes:
        version: Of this format.
        dtype: `uint16` up to a vocabulary of 65,536, else `uint32`; little-endian.
        count: Tokens of all shards.
        documents: Documents, each followed by one end-of-text id.
        vocab_size: The tokenizer's highest id plus one.
        fingerprint: The tokenizer's.
        end_of_text_id: The id after each document.
        bytes: Bytes of text that the tokens stand for, without the end-of-text ids.
        hash: The name of the hash.
        shards: The files, in order.
        sources: The text files that were encoded; two splits of one pass name the same.
        chat_template: SHA-256 of the chat templates beside files with masks.
        parts: What `encode` did, part by part: the same command compares it, and keeps what is whole.
        end_is_held_out: Whether the end of the text is for validation, since there were too few documents.
    """

    version: int
    dtype: str
    count: int
    documents: int
    vocab_size: int
    fingerprint: str
    end_of_text_id: int
    bytes: int
    hash: str
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]
    chat_template: str | None = None
    parts: tuple[dict[str, Any], ...] = ()
    end_is_held_out: bool = False

    @property
    def has_mask(self) -> bool:
        """Whether there is a mask beside each shard."""
        return self.chat_template is not None

    @property
    def counted(self) -> int:
        """Tokens that the loss counts."""
        return sum(shard.count if shard.counted is None else shard.counted for shard in self.shards)

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        content = asdict(self)
        if self.chat_template is None:
            del content["chat_template"]
        return {**content, "shards": [shard.to_dict() for shard in self.shards]}

    def identity(self) -> dict[str, Any]:
        """Counts and hashes, which differ from those of any other data."""
        content: dict[str, Any] = {"tokens": self.count, _key(self.hash): _joined([s.hash for s in self.shards])}
        if self.has_mask:
            masks = _joined([shard.mask_hash or "" for shard in self.shards])
            content |= {"counted": self.counted, f"mask_{_key(self.hash)}": masks}
        return content


def data_hash(identity: dict[str, Any]) -> str | None:
    """What distinguishes the data of a recorded `identity` from other data."""
    return identity.get("hash") or identity.get(_OLD_HASH)


def hash_of_hashes(hashes: list[str]) -> str:
    """A hash for several."""
    return xxhash.xxh3_128("".join(hashes).encode()).hexdigest()


def dtype_for(vocab_size: int) -> "np.dtype[np.unsignedinteger[Any]]":
    """The smaller of uint16 and uint32 that can hold ids below `vocab_size`, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        TokenFileError: It is missing, damaged, or of another version.
    """
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
        return _checked(_parsed(path, content))
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenFileError(f"the manifest {path} is damaged: {error}; encode the text again") from None


def _parsed(path: Path, content: dict[str, Any]) -> Manifest:
    version = content["version"]
    if version in _OLD_VERSIONS and _OLD_VERSIONS[version] == (content.get("mask") is not None):
        return _from_old(path, dict(content))
    if version != (VERSION if content.get("chat_template") is None else VERSION_WITH_MASK):
        raise TokenFileError(
            f"the manifest {path} has version {version!r}; this program reads {VERSION}, {VERSION_WITH_MASK} for files "
            f"with a mask, and {', '.join(map(str, _OLD_VERSIONS))} of earlier ones; encode the text again"
        )
    shards = tuple(Shard(**shard) for shard in content["shards"])
    sources = tuple(Source(**source) for source in content["sources"])
    return Manifest(**{**content, "shards": shards, "sources": sources, "parts": tuple(content.get("parts", ()))})


def _from_old(path: Path, content: dict[str, Any]) -> Manifest:
    """The manifest of one file NAME.bin."""
    mask, digest = content.pop("mask", None), content.pop(_OLD_HASH)
    sources = tuple(
        Source(**{("hash" if name == _OLD_HASH else name): value for name, value in source.items()})
        for source in content.pop("sources")
    )
    shard = Shard(path.with_suffix(".bin").name, 0, content["count"], content["documents"], content["bytes"], digest)
    if mask is not None:
        shard = replace(shard, counted=mask["counted"], mask_hash=mask[_OLD_HASH])
    template = None if mask is None else mask["chat_template"]
    return Manifest(**content, hash=_OLD_HASH, shards=(shard,), sources=sources, chat_template=template)


def _checked(manifest: Manifest) -> Manifest:
    numbers = {key: getattr(manifest, key) for key in ("count", "documents", "vocab_size", "end_of_text_id", "bytes")}
    for shard in manifest.shards:
        numbers |= {f"{key} of {shard.file!r}": getattr(shard, key) for key in ("part", "count", "documents", "bytes")}
        if manifest.has_mask:
            numbers[f"counted of {shard.file!r}"] = shard.counted
        if not isinstance(shard.file, str) or Path(shard.file).name != shard.file:
            raise TypeError(f"{shard.file!r} is not the name of a file beside it")
        if not isinstance(shard.hash, str) or (manifest.has_mask and not isinstance(shard.mask_hash, str)):
            raise TypeError(f"{shard.file!r} has no hash")
    for key, value in numbers.items():
        if type(value) is not int or value < 0:
            raise TypeError(f"{key} is {value!r}, not a non-negative integer")
    for key in ("count", "documents", "bytes"):
        if numbers[key] != sum(getattr(shard, key) for shard in manifest.shards):
            raise TypeError(f"{key} is {numbers[key]}, but that of its shards is another one")
    if not all(isinstance(part, dict) for part in manifest.parts):
        raise TypeError("its parts are not objects")
    if manifest.hash not in (HASH, _OLD_HASH):
        raise TypeError(f"hash is {manifest.hash!r}, not {HASH} or {_OLD_HASH}")
    return manifest


def _key(name: str) -> str:
    """What a hash is called in a run's record, where those of earlier versions must stay what they were."""
    return name if name == _OLD_HASH else "hash"


def _joined(hashes: list[str]) -> str:
    return hashes[0] if len(hashes) == 1 else hash_of_hashes(hashes)
