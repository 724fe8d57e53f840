"""The manifest of a token file: what is in it, and what it was made from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.errors import TrainerError

VERSION = 1
VERSION_WITH_MASK = 2
"""A program that knows no masks must not take such a file for one without."""


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
class MaskManifest:
    """What the manifest of a token file of conversations says of its mask.

    Attributes:
        counted: Tokens that the loss counts.
        sha256: Of the mask.
        chat_template: SHA-256 of the chat templates beside the file.
    """

    counted: int
    sha256: str
    chat_template: str


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
        mask: Of the mask; None for a file without one, each token of which counts.
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
    mask: MaskManifest | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content of the file; without a mask, as before there were any."""
        content = asdict(self)
        if self.mask is None:
            del content["mask"]
        return content

    def identity(self) -> dict[str, Any]:
        """Counts and hashes, which differ from those of any other file."""
        masked = {} if self.mask is None else {"counted": self.mask.counted, "mask_sha256": self.mask.sha256}
        return {"tokens": self.count, "sha256": self.sha256, **masked}


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
        version, mask = content["version"], content.get("mask")
        if version != (VERSION if mask is None else VERSION_WITH_MASK):
            known = f"{VERSION}, and {VERSION_WITH_MASK} for files with a mask"
            raise TokenFileError(
                f"the manifest {path} has version {version!r}; this program reads {known}; encode the text again"
            )
        sources = tuple(Source(**source) for source in content["sources"])
        manifest = Manifest(**{**content, "sources": sources, "mask": None if mask is None else MaskManifest(**mask)})
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenFileError(f"the manifest {path} is damaged: {error}; encode the text again") from None
    numbers = {key: getattr(manifest, key) for key in ("count", "documents", "vocab_size", "end_of_text_id", "bytes")}
    if manifest.mask is not None:
        numbers["mask.counted"] = manifest.mask.counted
    for key, value in numbers.items():
        if type(value) is not int or value < 0:
            raise TokenFileError(
                f"the manifest {path} is damaged: {key} is {value!r}, not a non-negative integer; encode the text again"
            )
    return manifest
