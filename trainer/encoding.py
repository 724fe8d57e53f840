"""Text files to token files."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.bpe import Tokenizer
from trainer.corpus import read_chunks, total_bytes
from trainer.errors import TrainerError, UsageError
from trainer.tokenfile import Manifest, Source, TokenFileError, TokenFileWriter, refuse_existing

TRAIN, VALIDATION = "train", "val"


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

    def write(self, ids: npt.NDArray[np.int64]) -> None:
        ends = np.flatnonzero(ids == self.end_of_text_id) + 1
        if self.val_fraction is None:
            self.writers[0].write(ids, len(ends))
            self.documents += len(ends)
            return
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
    for ids in _encode_blocks(read_chunks(path, meter.add), tokenizer, separator):
        router.write(ids)
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


def _encode_blocks(
    chunks: Iterable[str], tokenizer: Tokenizer, separator: str | None
) -> Iterator[npt.NDArray[np.int64]]:
    allowed = () if separator is None else (separator,)
    for block in tokenizer.chunker(allowed_special=allowed).blocks(chunks):
        ids = tokenizer.encode(block, allowed_special=allowed)
        if ids:
            yield np.array(ids)


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
