"""Writing token files: a file grows under a temporary name, may be continued by another run, and appears as a whole."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from shared.bpe import Tokenizer
from trainer.tokens.token_file import VERSION, Ids, Manifest, Source, TokenFileError, dtype_for

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
    """

    count: int = 0
    documents: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class TokenFileWriter:
    """Writes a token file under a temporary name; only `commit` gives it its own.

    Args:
        path: The array's path; its manifest is beside it.
        tokenizer: The ids' tokenizer.
        end_of_text_id: The id after each document.
        partial: The temporary name, in an existing directory of the same file system.
        written: What an earlier writer has left there, to be continued; what follows it in the file is cut off.

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
    ):
        self.path = path
        self.documents = 0
        self._count = 0
        self._bytes = 0
        self._tokenizer = tokenizer
        self.end_of_text_id = end_of_text_id
        self._dtype = dtype_for(tokenizer.vocab_size)
        self._digest = hashlib.sha256()
        self._lengths = token_lengths(tokenizer, end_of_text_id)
        self._partial = partial
        if written is not None:
            self._check(written)
        with self._write_errors():
            self._file: BinaryIO = partial.open("wb" if written is None else "r+b")
            if written is not None:
                self._file.truncate(self._file.seek(written.count * self._dtype.itemsize))

    def write(self, ids: Ids, documents: int, num_bytes: int | None = None) -> None:
        """Append ids, in which this many documents end; they stand for `num_bytes` of text, if that is known.

        Raises:
            WriteError: If the disk is full.
        """
        data = np.ascontiguousarray(ids, self._dtype).data
        with self._write_errors():
            self._file.write(data)
        self._digest.update(data)
        self._count += len(ids)
        self._bytes += int(self._lengths[ids].sum()) if num_bytes is None else num_bytes
        self.documents += documents

    def sync(self) -> Written:
        """Bring everything to the disk; returns what that is."""
        with self._write_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        return Written(self._count, self.documents, self._bytes, self._digest.hexdigest())

    def ids(self) -> Ids:
        """What has been written, mapped from the disk."""
        with self._write_errors():
            self._file.flush()
        if not self._count:
            return np.empty(0, self._dtype)
        return np.memmap(self._partial, dtype=self._dtype, mode="r", shape=(self._count,))

    def go_back(self, written: Written) -> None:
        """Drop what follows so many ids, whose SHA-256 is computed again; on the disk it stays until `commit`."""
        self._count, self.documents, self._bytes = written.count, written.documents, written.bytes
        self._digest = hashlib.sha256()
        ids = self.ids()
        for begin in range(0, written.count, _BLOCK_BYTES):
            self._digest.update(ids[begin : begin + _BLOCK_BYTES].data)
        self._file.seek(written.count * self._dtype.itemsize)

    def commit(self, sources: tuple[Source, ...]) -> Manifest:
        """Give the file its name, and then write its manifest, without which it cannot be opened."""
        self._file.truncate()
        written = self.sync()
        manifest = manifest_of(written, self._tokenizer, self.end_of_text_id, sources)
        manifest_path = self.path.with_suffix(".json")
        temporary = self._partial.with_suffix(".json")
        with self._write_errors(), temporary.open("wb") as file:
            file.write((json.dumps(asdict(manifest), indent=2) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        # An old manifest must never stand beside a new array.
        manifest_path.unlink(missing_ok=True)
        self._partial.replace(self.path)
        temporary.replace(manifest_path)
        return manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a full disk, which was reported when it was met
            self._file.close()

    def _check(self, written: Written) -> None:
        """Take over what was written, if it is there."""
        self._count, self.documents, self._bytes = written.count, written.documents, written.bytes
        left = written.count * self._dtype.itemsize
        with suppress(OSError), self._partial.open("rb") as file:
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                self._digest.update(block)
                left -= len(block)
        if left or self._digest.hexdigest() != written.sha256:
            raise TokenFileError(
                f"{self._partial} does not contain the {written.count:,} tokens that the interrupted run wrote; start "
                "again with --overwrite and without --resume"
            )

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(f"{self._partial} cannot be written: {error.strerror}") from None


def manifest_of(written: Written, tokenizer: Tokenizer, end_of_text_id: int, sources: tuple[Source, ...]) -> Manifest:
    """The manifest of a token file."""
    return Manifest(
        version=VERSION,
        dtype=dtype_for(tokenizer.vocab_size).name,
        vocab_size=tokenizer.vocab_size,
        fingerprint=tokenizer.fingerprint,
        end_of_text_id=end_of_text_id,
        sources=sources,
        **asdict(written),
    )


def token_lengths(tokenizer: Tokenizer, end_of_text_id: int) -> npt.NDArray[np.int64]:
    """int64 [vocabulary], the bytes of text that each id stands for; the end of a document stands for none."""
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token_id, token in tokenizer.tokens.items():
        lengths[token_id] = len(token)
    lengths[end_of_text_id] = 0
    return lengths
