"""Writing token files: a file grows under a temporary name, may be continued by another run, and appears as a whole."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from shared.bpe import Tokenizer
from trainer.tokens.manifest import VERSION, VERSION_WITH_MASK
from trainer.tokens.token_file import (
    MASK_SUFFIX,
    Ids,
    Manifest,
    Mask,
    MaskManifest,
    Source,
    TokenFileError,
    dtype_for,
)

_BLOCK_BYTES = 1 << 22


class WriteError(TokenFileError):
    """A token file that cannot be written, as on a full disk."""


@dataclass(frozen=True)
class Written:
    """What a token file contains so far.

    Attributes:
        count: Ids.
        documents: Documents that have ended.
        bytes: Bytes of text that the ids stand for.
        sha256: Of the ids as they are in the file.
        counted: Tokens that the loss counts, where there is a mask.
        mask_sha256: Of the mask.
    """

    count: int = 0
    documents: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    counted: int = 0
    mask_sha256: str = hashlib.sha256().hexdigest()


class _Array:
    """A file that an array grows in, and the SHA-256 of what it has so far."""

    def __init__(self, path: Path, dtype: "np.dtype[np.unsignedinteger[Any]]", written: tuple[int, str] | None) -> None:
        self.path = path
        self.dtype = dtype
        self.digest = hashlib.sha256()
        if written is not None:
            self._check(*written)
        with self.errors():
            self.file: BinaryIO = path.open("wb" if written is None else "r+b")
            if written is not None:
                self.file.truncate(self.file.seek(written[0] * dtype.itemsize))

    def write(self, values: Ids) -> None:
        data = np.ascontiguousarray(values, self.dtype).data
        with self.errors():
            self.file.write(data)
        self.digest.update(data)

    def sync(self) -> str:
        with self.errors():
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.digest.hexdigest()

    def values(self, count: int) -> Ids:
        with self.errors():
            self.file.flush()
        if not count:
            return np.empty(0, self.dtype)
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(count,))

    def go_back(self, count: int) -> None:
        self.digest = hashlib.sha256()
        values = self.values(count)
        for begin in range(0, count, _BLOCK_BYTES):
            self.digest.update(values[begin : begin + _BLOCK_BYTES].data)
        self.file.seek(count * self.dtype.itemsize)

    def _check(self, count: int, sha256: str) -> None:
        """Take over what was written, if it is there."""
        left = count * self.dtype.itemsize
        with suppress(OSError), self.path.open("rb") as file:
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                self.digest.update(block)
                left -= len(block)
        if left or self.digest.hexdigest() != sha256:
            raise TokenFileError(
                f"{self.path} does not contain the {count:,} tokens that the interrupted run wrote; start again with "
                "--overwrite and without --resume"
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Name the file in an error of the system."""
        try:
            yield
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror}") from None


class TokenFileWriter:
    """Writes a token file under a temporary name; only `commit` gives it its own.

    Args:
        path: The array's path; its manifest is beside it.
        tokenizer: The ids' tokenizer.
        end_of_text_id: The id after each document.
        partial: The temporary name, in an existing directory of the same file system.
        written: What an earlier writer has left there, to be continued; what follows it in the file is cut off.
        chat_template: For a file with a mask: the SHA-256 of the chat templates.

    Raises:
        TokenFileError: If the file does not contain what was written.
        WriteError: If it cannot be created.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        end_of_text_id: int,
        *,
        partial: Path,
        written: Written | None = None,
        chat_template: str | None = None,
    ):
        self.path = path
        self.end_of_text_id = end_of_text_id
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._lengths = token_lengths(tokenizer, end_of_text_id)
        before = written or Written()
        self._count, self.documents, self._bytes, self._counted = _counts(before)
        self._ids = _Array(partial, dtype_for(tokenizer.vocab_size), (before.count, before.sha256) if written else None)
        self._mask: _Array | None = None
        if chat_template is not None:
            of_mask = (before.count, before.mask_sha256) if written else None
            self._mask = _Array(partial.with_suffix(MASK_SUFFIX), np.dtype(np.uint8), of_mask)

    def write(self, ids: Ids, documents: int, num_bytes: int | None = None, mask: Mask | None = None) -> None:
        """Append ids, in which this many documents end; they stand for `num_bytes` of text, if that is known.

        Raises:
            WriteError: If the disk is full.
        """
        self._ids.write(ids)
        if self._mask is not None:
            assert mask is not None
            self._mask.write(mask)
            self._counted += int(np.count_nonzero(mask))
        self._count += len(ids)
        self._bytes += int(self._lengths[ids].sum()) if num_bytes is None else num_bytes
        self.documents += documents

    def sync(self) -> Written:
        """Bring everything to the disk; returns what that is."""
        digest = self._ids.sync()
        mask_digest = Written.mask_sha256 if self._mask is None else self._mask.sync()
        return Written(self._count, self.documents, self._bytes, digest, self._counted, mask_digest)

    def ids(self) -> Ids:
        """What has been written, mapped from the disk."""
        return self._ids.values(self._count)

    def go_back(self, written: Written) -> None:
        """Drop what follows so many ids, whose SHA-256 is computed again; on the disk it stays until `commit`.

        Only for a file without a mask.
        """
        self._count, self.documents, self._bytes, self._counted = _counts(written)
        self._ids.go_back(written.count)

    def commit(self, sources: tuple[Source, ...]) -> Manifest:
        """Give the file its name, and then write its manifest, without which it cannot be opened."""
        arrays = [(self._ids, self.path)]
        if self._mask is not None:
            arrays.append((self._mask, self.path.with_suffix(MASK_SUFFIX)))
        for array, _ in arrays:
            array.file.truncate()
        manifest = manifest_of(self.sync(), self._tokenizer, self.end_of_text_id, sources, self._chat_template)
        manifest_path = self.path.with_suffix(".json")
        temporary = self._ids.path.with_suffix(".json")
        with self._ids.errors(), temporary.open("wb") as file:
            file.write((json.dumps(manifest.to_dict(), indent=2) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        # An old manifest must never stand beside a new array.
        manifest_path.unlink(missing_ok=True)
        self.path.with_suffix(MASK_SUFFIX).unlink(missing_ok=True)
        for array, path in arrays:
            array.path.replace(path)
        temporary.replace(manifest_path)
        return manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for array in (self._ids, self._mask):
            with suppress(OSError):  # a full disk, which was reported when it was met
                if array is not None:
                    array.file.close()


def _counts(written: Written) -> tuple[int, int, int, int]:
    return written.count, written.documents, written.bytes, written.counted


def manifest_of(
    written: Written,
    tokenizer: Tokenizer,
    end_of_text_id: int,
    sources: tuple[Source, ...],
    chat_template: str | None = None,
) -> Manifest:
    """The manifest of a token file; with the SHA-256 of its chat templates where it has a mask."""
    mask = None if chat_template is None else MaskManifest(written.counted, written.mask_sha256, chat_template)
    return Manifest(
        version=VERSION if mask is None else VERSION_WITH_MASK,
        dtype=dtype_for(tokenizer.vocab_size).name,
        count=written.count,
        documents=written.documents,
        vocab_size=tokenizer.vocab_size,
        fingerprint=tokenizer.fingerprint,
        end_of_text_id=end_of_text_id,
        bytes=written.bytes,
        sha256=written.sha256,
        sources=sources,
        mask=mask,
    )


def token_lengths(tokenizer: Tokenizer, end_of_text_id: int) -> npt.NDArray[np.int64]:
    """int64 [vocabulary], the bytes of text that each id stands for; the end of a document stands for none."""
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token_id, token in tokenizer.tokens.items():
        lengths[token_id] = len(token)
    lengths[end_of_text_id] = 0
    return lengths
