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
from trainer.console.progress import NewBar, Report
from trainer.errors import TrainerError, UsageError
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.text.batches import batches
from trainer.text.documents import whole_documents
from trainer.text.memory import EncodingMemory
from trainer.text.sampling import sample_documents
from trainer.text.sources import Input, open_inputs, total_size
from trainer.tokenizer.projection import Rate, check_repeatable, encoding_rate
from trainer.tokenizer.vocabularies import VocabularyContent

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
        rate: Of reading and encoding the whole text, where that was measured.
    """

    vocab_size: int
    counts: npt.NDArray[np.int64]
    seconds: float = 0.0
    rate: Rate | None = None

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
    """One text, or a sample of its documents, encoded by all tokenizers.

    Attributes:
        encodings: By the tokenizers' names.
        size: Of what was encoded.
        drawn_from: Of a sample: the number of documents of the text.
    """

    encodings: dict[str, Encoding]
    size: TextSize = field(default_factory=TextSize)
    drawn_from: int | None = None


@dataclass(frozen=True)
class Comparison:
    """What tokenizers make of texts, and what is in them; names are the paths as they were given.

    Attributes:
        texts: By the names of the texts.
        vocabularies: By the names of the tokenizers.
        settings: How they were compared.
    """

    texts: dict[str, TextEncodings]
    vocabularies: dict[str, VocabularyContent]
    settings: ComparisonSettings


def compare_tokenizers(
    tokenizers: Sequence[Path], texts: Sequence[Path], settings: ComparisonSettings, new_bar: NewBar
) -> Comparison:
    """Encode each text with each tokenizer; special tokens that are spelled in a document are text to it.

    Args:
        tokenizers: See `open_tokenizer`.
        texts: As in `open_inputs`.
        settings: How.
        new_bar: Shows the progress.

    Raises:
        UsageError: If there is no tokenizer or no text, or a tokenizer's pattern is unknown; or a text that is read
            several times (`project`) can be read only once.
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
    if settings.project is not None:
        for files in inputs.values():
            check_repeatable(files)
    for tokenizer in opened.values():
        tokenizer.warm_up()
    results = {name: _compare_on(name, files, opened, settings, new_bar) for name, files in inputs.items()}
    if settings.project is not None:
        threads = settings.threads or available_processors()
        for name, files in inputs.items():
            for path, encoding in results[name].encodings.items():
                report = new_bar(f"{name} with {path}", total_size([Path(name)]))
                encoding.rate = encoding_rate(open_tokenizer(Path(path)), files, settings, threads, report)
    return Comparison(results, {name: VocabularyContent(one) for name, one in opened.items()}, settings)


def _compare_on(
    name: str, files: Sequence[Input], tokenizers: dict[str, Tokenizer], settings: ComparisonSettings, new_bar: NewBar
) -> TextEncodings:
    # Every tokenizer has caches for each thread.
    threads = settings.threads or available_processors()
    memory = EncodingMemory(settings.memory_bytes, len(tokenizers) * threads)
    encodings = {key: Encoding(len(one), np.zeros(one.vocab_size, np.int64)) for key, one in tokenizers.items()}
    result = TextEncodings(encodings)
    documents: Iterable[str] = _documents(files, settings, memory, new_bar(name, None))
    if settings.sample is not None:
        documents, result.drawn_from = sample_documents(documents, settings.sample, settings.seed, memory.record)
    for batch in batches(documents, _BATCH_CHARACTERS, str):
        _add(result, batch, tokenizers, threads)
    if not result.size.bytes:
        if result.drawn_from:
            raise TrainerError(f"{name}: the documents that were drawn contain no text; draw more (--sample)")
        raise TrainerError(f"{name} contains no text")
    return result


def _documents(
    files: Sequence[Input], settings: ComparisonSettings, memory: EncodingMemory, report: Report
) -> Iterator[str]:
    """The documents of the beginning of a text."""
    read = 0
    for file in files:
        left = settings.max_bytes - read
        for document in whole_documents(file, settings.document_separator, settings.errors, left, memory):
            read += len(document.encode())
            report(read)
            yield document
        if read >= settings.max_bytes:
            return


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
