"""Writing shards: ids grow in a file under a temporary name, which appears as a whole, and is hashed on the way."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from shared.bpe import Tokenizer
from trainer.storage.folder import Folder, StorageError
from trainer.tokens.encoded_chunk import Ends, ends_in
from trainer.tokens.manifest import Shard, dtype_for
from trainer.tokens.token_file import MASK_SUFFIX, Ids, Mask, mask_file

_BLOCK_BYTES = 1 << 22
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Target:
    """Where shards go, and what is the same for all of them.

    Attributes:
        folder: The folder of the token files.
        scratch: A folder for what is not complete.
        tokenizer: Whose ids they hold.
        end_of_text_id: The id after each document.
        shard_tokens: The most ids of a shard.
        has_mask: Whether each has a mask beside it.
    """

    folder: Folder
    scratch: Path
    tokenizer: Tokenizer
    end_of_text_id: int
    shard_tokens: int
    has_mask: bool = False

    @cached_property
    def dtype(self) -> "np.dtype[np.unsignedinteger[Any]]":
        """Of the ids."""
        return dtype_for(self.tokenizer.vocab_size)

    @cached_property
    def lengths(self) -> Lengths:
        """int64 [vocabulary], the bytes of text that each id stands for; most texts are encoded without them."""
        return token_lengths(self.tokenizer, self.end_of_text_id)


class ShardWriter:
    """Writes the shards of a part of the text: PREFIX.bin, and PREFIX_0001.bin and so on for what does not fit.

    A shard ends behind the last document that fits. One that alone has more than `shard_tokens` ids fills shards
    whole.

    Args:
        target: Where shards go.
        prefix: What their names begin with.
        part: The number of the part.
    """

    def __init__(self, target: Target, prefix: str, part: int = 0) -> None:
        self.shards: list[Shard] = []
        self._target = target
        self._prefix = prefix
        self._part = part
        self._begin()

    def write(self, ids: Ids, ends: Ends | None = None, num_bytes: int | None = None, mask: Mask | None = None) -> None:
        """Append ids.

        Args:
            ids: The ids.
            ends: The places behind ends of documents, where they are known.
            num_bytes: Bytes of text that they stand for, if that is known.
            mask: Which of them the loss counts.

        Raises:
            StorageError: They cannot be written, as on a full disk.
        """
        if ends is None:
            ends = ends_in(ids, self._target.end_of_text_id)
        while len(ids):
            room = self._target.shard_tokens - self._count
            if len(ids) <= room:
                self._append(ids, ends, num_bytes, mask)
                return
            fitting = ends[ends <= room]
            if not len(fitting) and self._ended:
                self._divide()  # the document that does not fit begins the next shard
                continue
            cut = int(fitting[-1]) if len(fitting) else room
            size = int(self._target.lengths[ids[:cut]].sum())
            self._append(ids[:cut], fitting, size, None if mask is None else mask[:cut])
            self._complete()
            ids, ends, mask = ids[cut:], ends[len(fitting) :] - cut, None if mask is None else mask[cut:]
            num_bytes = None if num_bytes is None else num_bytes - size

    def finish(self) -> list[Shard]:
        """Complete the last shard; returns all of them."""
        if self._count:
            self._complete()
        else:
            self.abandon()
        return self.shards

    def close(self) -> None:
        """Drop everything, as of a part that will not be complete."""
        self.abandon()
        remove_shards(self._target.folder, self.shards)

    def abandon(self) -> None:
        """Drop the shard that is not complete."""
        for array in self._arrays:
            array.drop()

    def _begin(self) -> None:
        number = len(self.shards)
        self._name = f"{self._prefix}_{number:04}" if number else self._prefix
        self._count = self._bytes = self._documents = self._counted = 0
        self._ended = 0  # ids up to the end of the last document
        scratch = self._target.scratch
        self._arrays = [_Array(scratch / f"{self._name}.bin", self._target.dtype)]
        if self._target.has_mask:
            self._arrays.append(_Array(scratch / f"{self._name}{MASK_SUFFIX}", np.dtype(np.uint8)))

    def _append(self, ids: Ids, ends: Ends, num_bytes: int | None, mask: Mask | None) -> None:
        self._arrays[0].write(ids)
        if mask is not None:
            self._arrays[1].write(mask)
            self._counted += int(np.count_nonzero(mask))
        if len(ends):
            self._ended = self._count + int(ends[-1])
        self._documents += len(ends)
        self._bytes += int(self._target.lengths[ids].sum()) if num_bytes is None else num_bytes
        self._count += len(ids)

    def _divide(self) -> None:
        """Complete the shard without the document that has not ended, which begins the next one."""
        open_parts = [array.cut_off(self._ended) for array in self._arrays]
        ids = open_parts[0]
        self._count -= len(ids)
        self._bytes -= int(self._target.lengths[ids].sum())
        mask = open_parts[1].astype(np.uint8, copy=False) if self._target.has_mask else None
        if mask is not None:
            self._counted -= int(np.count_nonzero(mask))
        self._complete()
        self._append(ids, np.empty(0, np.int64), None, mask)

    def _complete(self) -> None:
        hashes = []
        for array in self._arrays:
            hashes.append(array.finish())
            self._target.folder.put(array.path, array.path.name)
        masked = (self._counted, hashes[1]) if self._target.has_mask else (None, None)
        self.shards.append(
            Shard(f"{self._name}.bin", self._part, self._count, self._documents, self._bytes, hashes[0], *masked)
        )
        self._begin()


class _Array:
    """A file that an array grows in, made when there is something to write, and the hash of what it has so far."""

    def __init__(self, path: Path, dtype: "np.dtype[np.unsignedinteger[Any]]") -> None:
        self.path = path
        self._dtype = dtype
        self._hash = xxhash.xxh3_128()
        self._file: BinaryIO | None = None
        self._written = self._sent = 0

    def write(self, values: Ids) -> None:
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        with self._errors():
            if self._file is None:
                self._file = self.path.open("w+b", buffering=0)
            left = data
            while left:
                left = left[self._file.write(left) :]
            self._written += len(data)
            if self._written - self._sent >= _BLOCK_BYTES:
                self._send()
        self._hash.update(data)

    def cut_off(self, count: int) -> Ids:
        """Remove and return what follows so many values; the others are hashed again."""
        assert self._file is not None
        with self._errors():
            self._file.seek(0)
            self._hash.reset()
            left = count * self._dtype.itemsize
            while left:
                block = self._file.read(min(left, _BLOCK_BYTES))
                if not block:
                    raise OSError(0, "it was cut short meanwhile")
                self._hash.update(block)
                left -= len(block)
            cut = np.frombuffer(self._file.read(), self._dtype)
            self._file.truncate(self._file.seek(count * self._dtype.itemsize))
        return cut

    def finish(self) -> str:
        """Close the file; returns its hash."""
        with self._errors():
            if self._file is not None:
                self._file.close()
        return self._hash.hexdigest()

    def _send(self) -> None:
        """Let the system write to the disk what it would write while the end of the shard is waited for."""
        if self._file is not None and hasattr(os, "posix_fadvise"):
            # POSIX_FADV_DONTNEED: Linux starts the writeback of dirty pages, and drops clean ones from the page cache.
            with suppress(OSError):  # a file system without such advice
                os.posix_fadvise(self._file.fileno(), self._sent, self._written - self._sent, os.POSIX_FADV_DONTNEED)
        self._sent = self._written

    def drop(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk, which was reported when it was met
                self._file.close()
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from None


def remove_shards(folder: Folder, shards: Iterable[Shard]) -> None:
    """Delete shards and their masks."""
    for shard in shards:
        folder.remove(shard.file)
        folder.remove(mask_file(shard.file))


def token_lengths(tokenizer: Tokenizer, end_of_text_id: int) -> Lengths:
    """int64 [vocabulary], the bytes of text that each id stands for; the end of a document stands for none."""
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token_id, token in tokenizer.tokens.items():
        lengths[token_id] = len(token)
    lengths[end_of_text_id] = 0
    return lengths
