"""Text files to token files."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shared.bpe import Tokenizer
from shared.bpe.corpus import Chunk, MappedFile
from shared.bpe.kernels.utf8 import first_invalid
from shared.bpe.processors import available_processors
from shared.bpe.word_counts import Specials
from trainer.corpus import check_signature, invalid_utf8, read_chunks, total_bytes
from trainer.errors import TrainerError, UsageError
from trainer.tokenfile import Ids, Manifest, Source, TokenFileError, TokenFileWriter, dtype_for, refuse_existing

TRAIN, VALIDATION = "train", "val"

# Text that a thread takes at once.
_CHUNK_BYTES = 3 << 18


@dataclass(frozen=True)
class EncodingReport:
    """What was written.

    Attributes:
        manifests: By the name of the split.
        bytes_read: Of the text files.
    """

    manifests: Mapping[str, Manifest]
    bytes_read: int


def encode_files(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    output: Path,
    *,
    separator: str | None = "<|endoftext|>",
    split: str = TRAIN,
    val_fraction: float | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> EncodingReport:
    """Encode text files into OUTPUT/SPLIT.bin and OUTPUT/SPLIT.json, with the tokenizer saved beside them.

    A document is the text between two separators, or between a separator and an edge of its file; after the last
    separator of a file there is none, unless text follows. Each is followed by exactly one end-of-text id, so decoding
    gives the files back byte for byte, with a separator added where a file does not end with one.

    Args:
        paths: UTF-8 text files, read in order and never as a whole.
        tokenizer: The tokenizer.
        output: The folder to write to; made if missing.
        separator: A special token of the tokenizer. With None every file is one document, and nothing in it is special.
        split: The name of the token file.
        val_fraction: Between 0 and 1: send about this share of the documents to OUTPUT/val, the rest to OUTPUT/train.
            Which ones depends on their number and the seed alone.
        seed: For the choice of validation documents.
        overwrite: Replace token files that exist.
        progress: Called with the bytes read so far.

    Raises:
        UsageError: If the settings do not fit together; raised before any file is read.
        CorpusError: If a file cannot be read as UTF-8.
        TokenFileError: If a token file is in the way, or one that is asked for would be empty.
    """
    names = (split,) if val_fraction is None else (TRAIN, VALIDATION)
    _check_settings(split, val_fraction)
    end_of_text_id = _end_of_text_id(tokenizer, separator)
    total_bytes(paths)
    refuse_existing(output, names, overwrite=overwrite)
    _refuse_other_tokenizer(tokenizer, output, overwrite=overwrite)
    output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers = [stack.enter_context(TokenFileWriter(output, name, tokenizer, end_of_text_id)) for name in names]
        router = _Router(writers, end_of_text_id, val_fraction, seed)
        sources, bytes_read = [], 0
        for path in paths:
            source = _encode_file(path, tokenizer, separator, router, _shifted(progress, bytes_read))
            sources.append(source)
            bytes_read += source.bytes
        _check_not_empty(writers, val_fraction)
        tokenizer.save(output)
        manifests = {name: writer.commit(tuple(sources)) for name, writer in zip(names, writers, strict=True)}
    return EncodingReport(manifests, bytes_read)


@dataclass
class _Router:
    """Sends every document to the writer that it belongs to, whatever the blocks that it comes in."""

    writers: Sequence[TokenFileWriter]
    end_of_text_id: int
    val_fraction: float | None
    seed: int
    documents: int = 0

    def write(self, ids: Ids, num_bytes: int | None = None) -> None:
        if self.val_fraction is None:
            documents = int(np.count_nonzero(ids == self.end_of_text_id))
            self.writers[0].write(ids, documents, num_bytes)
            self.documents += documents
            return
        ends = np.flatnonzero(ids == self.end_of_text_id) + 1
        start = 0
        for end in ends.tolist():
            self._writer().write(ids[start:end], 1)
            self.documents += 1
            start = end
        if start < len(ids):
            self._writer().write(ids[start:], 0)

    def _writer(self) -> TokenFileWriter:
        """The writer of the document that is being read."""
        digest = hashlib.blake2b(f"{self.seed}:{self.documents}".encode(), digest_size=8).digest()
        in_validation = int.from_bytes(digest, "little") < (self.val_fraction or 0.0) * 2**64
        return self.writers[1 if in_validation else 0]


@dataclass
class _Meter:
    """Size and hash of the bytes that went by."""

    progress: Callable[[int], None]
    size: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.digest.update(data)
        self.progress(self.size)


def _encode_file(
    path: Path, tokenizer: Tokenizer, separator: str | None, router: _Router, progress: Callable[[int], None]
) -> Source:
    meter = _Meter(progress)
    documents_before = router.documents
    # An empty file ends no document, as one that ends with a separator does.
    is_open = False
    for ids, num_bytes in _encode_path(path, tokenizer, separator, meter):
        router.write(ids, num_bytes)
        is_open = bool(ids[-1] != router.end_of_text_id)
    ends_with_separator = not is_open and router.documents > documents_before
    if is_open:
        router.write(np.array([router.end_of_text_id]))
    return Source(
        path=str(path),
        bytes=meter.size,
        sha256=meter.digest.hexdigest(),
        documents=router.documents - documents_before,
        ends_with_separator=ends_with_separator,
    )


def _encode_path(
    path: Path, tokenizer: Tokenizer, separator: str | None, meter: _Meter
) -> Iterator[tuple[Ids, int | None]]:
    """The ids of a file in order, never empty, and how many bytes of text they stand for, where that is known."""
    if tokenizer.is_cut_by_bytes and path.is_file() and path.stat().st_size:
        yield from _encode_mapped(path, tokenizer, separator, meter)
        return
    allowed = () if separator is None else (separator,)
    for block in tokenizer.chunker(allowed_special=allowed).blocks(read_chunks(path, meter.add)):
        ids = tokenizer.encode_to_numpy(block, allowed_special=allowed)
        if len(ids):
            yield ids, None


def _encode_mapped(
    path: Path, tokenizer: Tokenizer, separator: str | None, meter: _Meter
) -> Iterator[tuple[Ids, int | None]]:
    """`_encode_path` on all processors, for a file that can be mapped into memory and is cut as it lies there."""
    dtype = dtype_for(tokenizer.vocab_size)
    spelling = b"" if separator is None else separator.encode()

    def encode(chunk: Chunk) -> tuple[bytes, Ids, int]:
        data = chunk.data[chunk.begin : chunk.end].tobytes()
        if first_invalid(chunk.data, chunk.begin, chunk.end) >= 0:
            _refuse(path, chunk.begin, data)
        ids = tokenizer.encode_documents(data, separator)
        separators = data.count(spelling) if spelling else 0
        return data, ids.astype(dtype), len(data) - separators * len(spelling)

    chunks = MappedFile(path, _CHUNK_BYTES).chunks(Specials([spelling] if spelling else []), 0)
    processors = available_processors()
    with ThreadPoolExecutor(processors) as threads:
        waiting: deque[tuple[Chunk, Future[tuple[bytes, Ids, int]]]] = deque()
        for chunk in chunks:
            if not chunk.begin:
                check_signature(path, chunk.data[:8].tobytes())
            waiting.append((chunk, threads.submit(encode, chunk)))
            if len(waiting) > 2 * processors:
                yield _finish(*waiting.popleft(), meter)
        while waiting:
            yield _finish(*waiting.popleft(), meter)


def _finish(chunk: Chunk, encoding: "Future[tuple[bytes, Ids, int]]", meter: _Meter) -> tuple[Ids, int]:
    data, ids, num_bytes = encoding.result()
    meter.add(data)
    chunk.release()
    return ids, num_bytes


def _refuse(path: Path, offset: int, data: bytes) -> None:
    """Raise the error for bytes of a file that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise invalid_utf8(path, offset + error.start, error) from None


def _shifted(progress: Callable[[int], None] | None, before: int) -> Callable[[int], None]:
    return (lambda _: None) if progress is None else (lambda size: progress(before + size))


def _check_settings(split: str, val_fraction: float | None) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise UsageError(f"the split must be a name of letters, digits, - and _, such as {TRAIN!r}, not {split!r}")
    if val_fraction is None:
        return
    if not 0.0 < val_fraction < 1.0:
        raise UsageError(f"the validation fraction must lie between 0 and 1, not {val_fraction}")
    if split != TRAIN:
        raise UsageError(f"a validation fraction writes {TRAIN!r} and {VALIDATION!r}; it goes with no split {split!r}")


def _end_of_text_id(tokenizer: Tokenizer, separator: str | None) -> int:
    known = ", ".join(map(repr, tokenizer.special_tokens)) or "none"
    if separator is None:
        if tokenizer.end_of_text_id is None:
            raise UsageError(
                f"the tokenizer has no end-of-text token to put after each file; its special tokens: {known}"
            )
        return tokenizer.end_of_text_id
    if separator not in tokenizer.special_tokens:
        raise UsageError(
            f"the separator {separator!r} is no special token of the tokenizer, which has: {known}; learn a vocabulary "
            "with it, or encode without a separator"
        )
    return tokenizer.special_tokens[separator]


def _refuse_other_tokenizer(tokenizer: Tokenizer, output: Path, *, overwrite: bool) -> None:
    if overwrite or not (output / "tokenizer.json").exists():
        return
    other = Tokenizer.from_files(output).fingerprint
    if other != tokenizer.fingerprint:
        raise TokenFileError(
            f"{output} holds another tokenizer, with the fingerprint {other}; that of the one given is "
            f"{tokenizer.fingerprint}; choose another folder, or allow it to be overwritten"
        )


def _check_not_empty(writers: Sequence[TokenFileWriter], val_fraction: float | None) -> None:
    documents = sum(writer.documents for writer in writers)
    if not documents:
        raise TrainerError("the files hold no text: there is nothing to encode")
    for writer in writers:
        if not writer.documents:
            raise TrainerError(
                f"with a validation fraction of {val_fraction} none of the {documents} documents fell to "
                f"{writer.path.name}; give more documents, another fraction or seed, or a validation file of its own"
            )
