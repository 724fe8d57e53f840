"""How well and how fast tokenizers encode texts: every tokenizer on every text."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.bpe import PATTERNS, Tokenizer, TokenizerError
from shared.system.cpu_count import available_processors
from shared.system.regular_file import LARGEST_RECORD, read_regular
from trainer.console.progress import NewBar
from trainer.errors import TrainerError, UsageError
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.text.documents import whole_documents
from trainer.text.memory import EncodingMemory
from trainer.text.sizes import parse_size
from trainer.text.sources import TEXT_BYTES, open_inputs

_BATCH_CHARACTERS = 4 << 20  # of documents that are encoded together


@dataclass
class TextSize:
    """The size of a text.

    Attributes:
        documents: Documents.
        bytes: Bytes of UTF-8, without separators.
        characters: Code points.
        words: Parts between white space.
    """

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0


@dataclass
class Encoding:
    """One text encoded by one tokenizer.

    Attributes:
        vocab_size: The tokenizer's number of tokens.
        counts: int64, how often each id occurs.
        seconds: Time that encoding took.
    """

    vocab_size: int
    counts: npt.NDArray[np.int64]
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.counts.sum())

    @property
    def used(self) -> float:
        """The fraction of the vocabulary that occurs at least once."""
        return int(np.count_nonzero(self.counts)) / self.vocab_size


@dataclass
class TextEncodings:
    """One text encoded by all tokenizers, by their names."""

    size: TextSize = field(default_factory=TextSize)
    encodings: dict[str, Encoding] = field(default_factory=dict)


def compare_tokenizers(
    tokenizers: Sequence[Path], texts: Sequence[Path], settings: ComparisonSettings, new_bar: NewBar
) -> dict[str, TextEncodings]:
    """Encode each text with each tokenizer; special tokens that are spelled in a document are text to it.

    Args:
        tokenizers: See `open_tokenizer`.
        texts: As in `open_inputs`.
        settings: How.
        new_bar: Shows the progress.

    Returns:
        By the name of the text, as it was given.

    Raises:
        UsageError: If there is no tokenizer or no text, or a tokenizer's pattern is unknown.
        TokenizerError: If a tokenizer cannot be read.
        CorpusError: If a text cannot be read as UTF-8.
        TrainerError: If a text is empty.
    """
    if not tokenizers:
        raise UsageError("no tokenizer is given; name one or more with --tokenizer")
    opened = {str(path): open_tokenizer(path) for path in tokenizers}
    inputs = {str(path): open_inputs([path], text_field=settings.text_field) for path in texts}
    if not inputs:
        raise UsageError("no text is given; name a file, a directory, or - for standard input")
    for tokenizer in opened.values():
        tokenizer.warm_up()
    # Every tokenizer has caches for each thread.
    threads = settings.threads or available_processors()
    memory = EncodingMemory(settings.memory_bytes, len(opened) * threads)
    results: dict[str, TextEncodings] = {}
    for name, files in inputs.items():
        report = new_bar(name, None)
        result = results[name] = TextEncodings(
            encodings={key: Encoding(len(one), np.zeros(one.vocab_size, np.int64)) for key, one in opened.items()}
        )
        left = parse_size(settings.max_size)
        for file in files:
            before = result.size.bytes
            documents = whole_documents(file, settings.document_separator, settings.errors, left, memory)
            for batch in _batches(documents):
                _add(result, batch, opened, threads)
                report(result.size.bytes)
            left -= result.size.bytes - before
            if left <= 0:
                break
        if not result.size.bytes:
            raise TrainerError(f"{name} contains no text")
    return results


def open_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer's directory, a tokenizer.json, or a tiktoken rank file.

    A rank file NAME.tiktoken contains no pattern: it is that of NAME.tiktoken.json, which `Tokenizer.to_tiktoken`
    writes beside it, else the one that its name begins with, as in cl100k_base.tiktoken.

    Raises:
        UsageError: If the pattern of a rank file is not known.
        TokenizerError: If it cannot be read.
    """
    if path.suffix != ".tiktoken":
        return Tokenizer.from_files(path)
    beside = path.with_name(f"{path.name}.json")
    if beside.exists():
        try:
            content = json.loads(read_regular(beside, LARGEST_RECORD))
            pattern, special_tokens = content["pattern"], content["special_tokens"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TokenizerError(f"{beside} is damaged: {error}") from None
        return Tokenizer.from_tiktoken(path, pattern=pattern, special_tokens=special_tokens)
    pattern = path.name.partition("_")[0].removesuffix(".tiktoken")
    if pattern not in PATTERNS:
        raise UsageError(
            f"{path}: the pattern of a rank file is read from {beside.name} beside it, which does not exist, or from "
            f"the beginning of its name: {', '.join(PATTERNS)}"
        )
    return Tokenizer.from_tiktoken(path, pattern=pattern, special_tokens={})


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document) + TEXT_BYTES
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _add(result: TextEncodings, batch: list[str], tokenizers: dict[str, Tokenizer], threads: int) -> None:
    """Encode some documents with every tokenizer."""
    size = result.size
    size.documents += len(batch)
    for text in batch:
        size.bytes += len(text.encode())
        size.characters += len(text)
        size.words += len(text.split())
    for name, tokenizer in tokenizers.items():
        encoding = result.encodings[name]
        begin = time.perf_counter()
        encoded = tokenizer.encode_batch_to_numpy(batch, max_threads=threads)
        encoding.seconds += time.perf_counter() - begin
        for ids in encoded:
            encoding.counts += np.bincount(ids, minlength=len(encoding.counts))
