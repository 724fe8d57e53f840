"""Token files: a flat array of ids, memory-mapped, and a JSON manifest that says what they are."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shared.bpe import Tokenizer
from trainer.errors import TrainerError

Ids = npt.NDArray[np.unsignedinteger[Any]]

VERSION = 1
_CHECKED_AT_ONCE = 1 << 22


class TokenFileError(TrainerError):
    """A token file that is missing, damaged, in the way, or made with another tokenizer."""


@dataclass(frozen=True)
class Source:
    """A text file that tokens came from.

    Attributes:
        path: As it was given.
        bytes: Its size.
        sha256: Of its bytes.
        documents: Documents found in it.
        ends_with_separator: Whether a separator ends it. Where none does, its last end-of-text id stands for none.
    """

    path: str
    bytes: int
    sha256: str
    documents: int
    ends_with_separator: bool


@dataclass(frozen=True)
class Manifest:
    """What a token file holds.

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


@dataclass(frozen=True)
class TokenFile:
    """A token file, open for reading.

    Attributes:
        path: The array's path.
        tokens: The ids, 1-D, memory-mapped.
        manifest: What they are.
    """

    path: Path
    tokens: Ids
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path, name: str, *, fingerprint: str | None = None) -> "TokenFile":
        """Open FOLDER/NAME.bin, checked against its manifest FOLDER/NAME.json.

        Args:
            folder: The folder.
            name: The split, such as "train".
            fingerprint: That of the tokenizer in use, if the tokens must be its.

        Raises:
            TokenFileError: If either file is missing or they do not fit together, or the tokenizer is another one.
        """
        path = Path(folder) / f"{name}.bin"
        manifest = _read_manifest(path.with_suffix(".json"))
        if fingerprint is not None and fingerprint != manifest.fingerprint:
            raise TokenFileError(
                f"{path} was made with another tokenizer: its fingerprint is {manifest.fingerprint}, that of the "
                f"tokenizer {fingerprint}; encode the text again"
            )
        dtype = dtype_for(manifest.vocab_size)
        if manifest.dtype != dtype.name:
            raise TokenFileError(
                f"the manifest {path.with_suffix('.json')} is damaged: dtype is {manifest.dtype!r}, but tokens of a "
                f"vocabulary of {manifest.vocab_size} are {dtype.name}"
            )
        try:
            size = path.stat().st_size
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
        if size != manifest.count * dtype.itemsize or not size:
            raise TokenFileError(
                f"{path} has {size} bytes, but its manifest tells of {manifest.count} tokens of {dtype.itemsize} "
                "bytes each, and there must be at least one; encode the text again"
            )
        try:
            return cls(path, np.memmap(path, dtype=dtype, mode="r"), manifest)
        except OSError as error:
            raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None

    def check_ids(self) -> None:
        """Read all ids once.

        Raises:
            TokenFileError: If one is beyond the vocabulary; names its place.
        """
        for start in range(0, len(self.tokens), _CHECKED_AT_ONCE):
            wrong = self.tokens[start : start + _CHECKED_AT_ONCE] >= self.manifest.vocab_size
            if wrong.any():
                place = start + int(wrong.argmax())
                raise TokenFileError(
                    f"{self.path}: token {place} is {self.tokens[place]}, beyond a vocabulary of "
                    f"{self.manifest.vocab_size}"
                )


class TokenFileWriter:
    """Writes a token file under a temporary name; only `commit` gives it its own.

    Use it as a context manager, which removes what was not committed.
    """

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer, end_of_text_id: int):
        self.path = folder / f"{name}.bin"
        self.documents = 0
        self._count = 0
        self._bytes = 0
        self._tokenizer = tokenizer
        self._end_of_text_id = end_of_text_id
        self._dtype = dtype_for(tokenizer.vocab_size)
        self._digest = hashlib.sha256()
        self._lengths = _token_lengths(tokenizer, end_of_text_id)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        self._file = self._temporary.open("wb")

    def write(self, ids: Ids, documents: int, num_bytes: int | None = None) -> None:
        """Append ids, in which this many documents end; they stand for `num_bytes` of text, where that is known."""
        data = np.ascontiguousarray(ids, self._dtype).data
        self._file.write(data)
        self._digest.update(data)
        self._count += len(ids)
        self._bytes += int(self._lengths[ids].sum()) if num_bytes is None else num_bytes
        self.documents += documents

    def commit(self, sources: tuple[Source, ...]) -> Manifest:
        """Give the file its name, and then write its manifest, without which it cannot be opened."""
        manifest = Manifest(
            version=VERSION,
            dtype=self._dtype.name,
            count=self._count,
            documents=self.documents,
            vocab_size=self._tokenizer.vocab_size,
            fingerprint=self._tokenizer.fingerprint,
            end_of_text_id=self._end_of_text_id,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
            sources=sources,
        )
        _sync(self._file)
        manifest_path = self.path.with_suffix(".json")
        # An old manifest must never stand beside a new array.
        manifest_path.unlink(missing_ok=True)
        self._temporary.replace(self.path)
        temporary = manifest_path.with_name(f".{manifest_path.name}.{os.getpid()}.partial")
        with temporary.open("wb") as file:
            file.write((json.dumps(asdict(manifest), indent=2) + "\n").encode())
            _sync(file)
        temporary.replace(manifest_path)
        return manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def dtype_for(vocab_size: int) -> "np.dtype[np.unsignedinteger[Any]]":
    """The narrowest of uint16 and uint32 that holds the ids below `vocab_size`, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def refuse_existing(folder: Path, names: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise a TokenFileError if one of these token files exists and must not be overwritten."""
    for path in (folder / f"{name}.{suffix}" for name in names for suffix in ("bin", "json")):
        if path.exists() and not overwrite:
            raise TokenFileError(f"{path} exists; choose another folder, or allow it to be overwritten")


def _token_lengths(tokenizer: Tokenizer, end_of_text_id: int) -> npt.NDArray[np.int64]:
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token_id, token in tokenizer.tokens.items():
        lengths[token_id] = len(token)
    lengths[end_of_text_id] = 0
    return lengths


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_manifest(path: Path) -> Manifest:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TokenFileError(f"the manifest {path} cannot be read: {error.strerror}; encode the text first") from None
    except ValueError as error:
        raise TokenFileError(f"the manifest {path} is not JSON: {error}") from None
    try:
        if content["version"] != VERSION:
            raise TokenFileError(
                f"the manifest {path} has version {content['version']!r}; this program reads {VERSION}"
            )
        manifest = Manifest(**{**content, "sources": tuple(Source(**source) for source in content["sources"])})
    except (KeyError, TypeError) as error:
        raise TokenFileError(f"the manifest {path} is damaged: {error}") from None
    for key in ("count", "documents", "vocab_size", "end_of_text_id", "bytes"):
        value = getattr(manifest, key)
        if type(value) is not int or value < 0:
            raise TokenFileError(f"the manifest {path} is damaged: {key} is {value!r}, not a whole number")
    return manifest
