"""Manifests for arrays of token ids that other programs wrote, so that `train` accepts them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from shared.bpe import SourceError, Tokenizer
from shared.system.stages import Stage, no_stage, staged
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.encode import EncodeSettings
from trainer.storage.remote import local_path
from trainer.storage.remote_folder import open_folder
from trainer.tokens.assembly import manifest_of
from trainer.tokens.job import EncodingJob, end_of_text_id
from trainer.tokens.manifest import Manifest, Shard, Source, TokenFileError, dtype_for
from trainer.tokens.output import Output
from trainer.tokens.shard_writer import ShardWriter, token_lengths
from trainer.tokens.token_array import AnyIds, TokenArray
from trainer.tokens.token_file import Ids


def adopt_array(
    array: TokenArray,
    tokenizer: Tokenizer,
    output: Path | None,
    settings: EncodeSettings,
    *,
    stage: Stage = no_stage,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Make a token file of an array, checked against a tokenizer, and save the tokenizer beside it.

    Without an output directory only the manifest and the tokenizer are written, beside the file, which must be named
    SPLIT.bin and be a token file except for its manifest; otherwise it is written again, to shards in OUTPUT.

    Args:
        array: The ids; a document ends at each end-of-text id.
        tokenizer: The tokenizer that made them.
        output: The directory to write to; made if missing.
        settings: The split, the separator, and whether files are replaced.
        stage: Called for each stage of the work.
        progress: Called with the ids read so far.

    Raises:
        UsageError: The settings do not fit the tokenizer or the file.
        TokenFileError: A number is not an id of the tokenizer, or a file is in the way.
        StorageError: The output cannot be written, or another process writes to it.
        InterruptedRunError: A signal stopped it; nothing is kept.
    """
    if settings.val_fraction is not None:
        raise UsageError("--manifest-for takes an array as it is: it cannot be combined with --val-fraction")
    ends = end_of_text_id(tokenizer, settings.document_separator)
    name, output = settings.split, None if output is None else local_path(output)
    in_place = output is None or _is_same(array.path, output / f"{name}.bin")
    if output is None or in_place:
        _check_in_place(array, tokenizer, name)
        output = array.path.parent
    elif _is_same(array.path.parent, output) and array.path.name.startswith(f"{name}-"):
        raise UsageError(f"{array.path} may be one of the files that are replaced; name another --output directory")
    out = Output(open_folder(output), [name])
    if not settings.overwrite:
        if not in_place and out.unfinished() is not None:
            raise TokenFileError(
                f"{out.folder.path(out.state)} contains the work of an interrupted run of `encode`; finish that, or "
                "drop it with --overwrite"
            )
        out.refuse_existing(manifests_only=in_place)
        out.refuse_other_tokenizer(tokenizer)
    job = EncodingJob([], tokenizer, settings, ends)
    write = _write_manifest if in_place else _write_again
    with stop_on_signals() as stop:
        return write(_Reading(array, tokenizer, ends, stop, stage=stage, progress=progress), out, job)


class _Reading:
    """One pass over an array: its ids, each of which is one of the tokenizer, and what they sum up to."""

    def __init__(
        self,
        array: TokenArray,
        tokenizer: Tokenizer,
        ends: int,
        stop: StopRequest,
        *,
        stage: Stage,
        progress: Callable[[int], None] | None,
    ):
        self.array = array
        self.tokenizer = tokenizer
        self.ends = ends
        self._stop = stop
        self.stage = stage
        self._progress = progress
        self._is_id = np.zeros(tokenizer.vocab_size, np.bool_)
        self._is_id[list(tokenizer.tokens)] = True
        self._digest = xxhash.xxh3_128()
        self._documents = 0

    def blocks(self) -> Iterator[tuple[Ids, int]]:
        """The ids as they are in token files, and how many documents end among them."""
        array, done = self.array, 0
        self._digest.update(array.header())
        dtype = dtype_for(self.tokenizer.vocab_size)
        try:
            for block in staged(array.blocks(), self.stage, "read"):
                if self._stop.signal_number is not None:
                    raise InterruptedRunError("stopped; nothing was written", self._stop.signal_number)
                with self.stage("check ids", block.nbytes):
                    self._check(block, done)
                with self.stage("hash", block.nbytes):
                    self._digest.update(block.data)
                ids: Ids = block.astype(dtype, copy=False)
                with self.stage("count documents", block.nbytes):
                    documents = int(np.count_nonzero(ids == self.ends))
                self._documents += documents
                done += len(block)
                if self._progress is not None:
                    self._progress(done)
                yield ids, documents
        except SourceError as error:
            raise TokenFileError(str(error)) from None

    def source(self) -> Source:
        """The array as the source of the token file; known after the pass."""
        array = self.array
        size = array.offset + array.count * array.dtype.itemsize
        # No end-of-text id is added, whatever follows the last one.
        return Source(str(array.path), size, self._digest.hexdigest(), self._documents, self._documents > 0)

    def _check(self, block: AnyIds, start: int) -> None:
        size = len(self._is_id)
        if block.min() < 0 or block.max() >= size or not self._is_id[block].all():
            wrong = (block < 0) | (block >= size)
            wrong[~wrong] = ~self._is_id[block[~wrong]]
            place = int(wrong.argmax())
            raise TokenFileError(
                f"{self.array.path}: number {start + place:,} is {block[place]:,}, not an id of this tokenizer (its "
                f"highest is {size - 1:,}); {self._advice(block)}"
            )

    def _advice(self, block: AnyIds) -> str:
        swapped = block.byteswap()
        if not self.array.offset and block.itemsize > 1 and swapped.min() >= 0 and swapped.max() < len(self._is_id):
            order = ">" if self.array.dtype.newbyteorder("<") == self.array.dtype else "<"
            return f"its bytes seem to be swapped: --dtype '{order}{self.array.dtype.str[1:]}'"
        return "give the tokenizer that made the ids, or their true --dtype"


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and path.samefile(other)


def _check_in_place(array: TokenArray, tokenizer: Tokenizer, name: str) -> None:
    dtype = dtype_for(tokenizer.vocab_size)
    if array.path.name != f"{name}.bin":
        raise UsageError(
            f"{array.path} is not named {name}.bin, as the split {name!r} must be: name another --split, or an "
            "--output directory to write it there"
        )
    if array.offset or array.dtype != dtype:
        header = "has a header" if array.offset else f"has numbers of type {array.dtype.str}"
        raise UsageError(
            f"{array.path} {header}; a token file of this tokenizer is a flat array of {dtype.str}: name an --output "
            "directory to write it there"
        )


def _write_manifest(reading: _Reading, out: Output, job: EncodingJob) -> Manifest:
    """The manifest beside an array that stays as it is."""
    lengths = token_lengths(reading.tokenizer, reading.ends)
    size = 0
    for ids, _ in reading.blocks():
        with reading.stage("count bytes of text", ids.nbytes):
            size += int(lengths[ids].sum())
    source = reading.source()
    shard = Shard(reading.array.path.name, 0, reading.array.count, source.documents, size, source.hash)
    return _committed(reading, out, manifest_of(job, [shard], [source]))


def _write_again(reading: _Reading, out: Output, job: EncodingJob) -> Manifest:
    """Shards with the same ids."""
    with out.scratch() as scratch:
        out.forget()
        out.drop()
        writer = ShardWriter(job.target(out.folder, scratch), f"{job.settings.split}-00000")
        try:
            for ids, _ in reading.blocks():
                with reading.stage("write token file", ids.nbytes):
                    writer.write(ids)
            shards = writer.finish()
        except BaseException:
            writer.close()
            raise
        return _committed(reading, out, manifest_of(job, shards, [reading.source()]))


def _committed(reading: _Reading, out: Output, manifest: Manifest) -> Manifest:
    for name, content in reading.tokenizer.files().items():
        out.folder.write(name, content)
    out.commit({out.splits[0]: manifest})
    return manifest
