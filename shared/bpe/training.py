"""Learning a byte-level BPE vocabulary from text."""

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.bpe.corpus import Source, Texts
from shared.bpe.counting import BytesProgress, CorpusCounter, Errors
from shared.bpe.errors import TokenizerError
from shared.bpe.memory import peak_memory, resident_memory, total_memory
from shared.bpe.merge_learner import LearntMerges, MergeLearner, Progress
from shared.bpe.patterns import PATTERNS, resolve_pattern
from shared.bpe.processors import available_processors
from shared.bpe.regex_counting import counts_by_regex
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.training_settings import merges_wanted, reserved_spellings
from shared.bpe.training_state import TrainingState, identity_of
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.bpe.word_counts import Specials
from shared.bpe.word_layout import Partitions, WordTotals

END_OF_TEXT = "<|endoftext|>"

# What learning takes beside the tables of words, at least.
_RESERVE_BYTES = 48 << 20
_SHARE_OF_TABLES = 0.7
# More threads than there are such parts of the corpus would only make more tables.
_BYTES_PER_THREAD = 1 << 22


@dataclass(frozen=True)
class TrainingReport:
    """What was counted and learnt, and what it took.

    Attributes:
        bytes_counted: Of the text, special tokens included.
        distinct_words: Pieces that the pattern cuts, each counted once.
        words: Their occurrences.
        words_left_out: Occurrences of words below the minimum count.
        replaced_bytes: Characters U+FFFD put in place of bytes that are not UTF-8.
        spilled_bytes: Word counts that went through the disk.
        single_use_share: The share of merged tokens that occur once or never in the text when all merges are applied.
        counting_seconds: Reading and counting.
        merging_seconds: Laying the words out, and learning.
        peak_memory: The most bytes of memory that the process has held.
    """

    bytes_counted: int
    distinct_words: int
    words: int
    words_left_out: int
    replaced_bytes: int
    spilled_bytes: int
    single_use_share: float
    counting_seconds: float
    merging_seconds: float
    peak_memory: int


@dataclass(frozen=True)
class TrainingResult:
    """A tokenizer and how far its training came.

    Attributes:
        requested_size: Tokens asked for.
        reached_size: Tokens learnt, fewer where the text has too few pairs.
        bytes_per_token: Of the text itself, special tokens left out.
        is_blank: Whether the text holds nothing but white space.
        report: What it took.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    bytes_per_token: float
    is_blank: bool
    report: TrainingReport


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    pattern: str = "gpt2",
    progress: Progress | None = None,
) -> TrainingResult:
    r"""Learn a vocabulary: the most frequent pair of neighbours becomes a token, again and again.

    Of equally frequent pairs, the lexicographically greatest pair of byte strings goes first, so that the result
    depends on the text alone. Ids are the 256 bytes, the merges in order, then the special tokens.

    Args:
        texts: Parts of the corpus; no piece crosses from one to the next.
        vocab_size: Tokens wanted, the bytes and special tokens included.
        special_tokens: Never cut, never counted, in order of their ids. None may be spelt like a single byte; none can
            be learnt as a merge too, since no text that is counted holds it.
        pattern: The name of a pattern or a regular expression.
        progress: Called now and then with the merges learnt and the merges wanted.

    Raises:
        TokenizerError: If the settings cannot be met; raised before any text is read.

    >>> result = train_bpe(["low low lower"], 300, special_tokens=["<|endoftext|>"])
    >>> result.reached_size, result.tokenizer.encode("lower")
    (262, [257, 259])
    """
    texts_source = Texts("the texts", lambda: map(encode_utf8, texts))
    return train_bpe_from_sources(
        [texts_source], vocab_size, special_tokens=special_tokens, pattern=pattern, progress=progress, threads=1
    )


def train_bpe_from_sources(
    sources: Sequence[Source],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    pattern: str = "gpt2",
    min_count: int = 1,
    errors: Errors = "strict",
    threads: int | None = None,
    memory_limit: int | None = None,
    state: Path | None = None,
    resume: bool = False,
    bytes_progress: BytesProgress | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """`train_bpe` from files and streams, on all cores and in bounded memory.

    The result is the same whatever the number of threads, the memory and the order of the sources, and however often
    the training was interrupted.

    Args:
        sources: The corpus.
        vocab_size: As in `train_bpe`.
        special_tokens: As in `train_bpe`.
        pattern: As in `train_bpe`. A custom one is run by the `regex` package: on one core, and much more slowly.
        min_count: Pieces that occur less often are left out.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        threads: How many count; as many as there are cores by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default.
        state: A folder for what an interrupted training leaves; it is gone when training is complete.
        resume: Go on from what is there.
        bytes_progress: Called with the bytes counted so far.
        progress: As in `train_bpe`.

    Raises:
        TokenizerError: If the settings cannot be met, a source cannot be read, or the memory is too small.
    """
    expression = resolve_pattern(pattern)
    num_merges = merges_wanted(vocab_size, special_tokens)
    if min_count < 1:
        raise TokenizerError(f"the minimum count is {min_count}; it must be 1 or more")
    limit = memory_limit or total_memory() // 2
    name = next((name for name, named in PATTERNS.items() if named == expression), None)
    threads = _num_threads(sources, threads) if name else 1
    identity = identity_of(expression, special_tokens, errors, sources)
    with tempfile.TemporaryDirectory(prefix="ownlm-") as scratch:
        kept = TrainingState(state or Path(scratch) / "counts", identity)
        begin = time.monotonic()
        counter = CorpusCounter(
            name or "gpt2",
            Specials(map(encode_utf8, special_tokens)),
            threads=threads,
            errors=errors,
            table_bytes=_table_bytes(limit),
            runs=kept.runs,
        )
        if resume:
            counter.resume(kept.load())
        else:
            kept.remove()
        try:
            if name:
                counter.count(sources, bytes_progress)
                partitions = counter.partitions()
            else:
                partitions = counts_by_regex(counter, sources, special_tokens, expression, bytes_progress)
            counted = time.monotonic()
            learner = MergeLearner(
                partitions,
                num_merges,
                reserved=reserved_spellings(special_tokens),
                min_count=min_count,
                max_bytes=limit - resident_memory(),
                threads=threads,
            )
            learnt = learner.learn(progress)
        except KeyboardInterrupt:
            if state is not None and name:
                kept.save(counter)
            raise
        report = _report(counter, learner.totals, learnt, counted - begin, time.monotonic() - counted)
        is_blank = _is_blank(partitions)
        kept.remove()
    tokenizer = Tokenizer(_vocabulary(learnt, special_tokens, expression))
    return TrainingResult(
        tokenizer,
        requested_size=vocab_size,
        reached_size=len(tokenizer),
        bytes_per_token=learner.totals.num_bytes / max(1, int(learnt.uses.sum())),
        is_blank=is_blank,
        report=report,
    )


def _vocabulary(learnt: LearntMerges, special_tokens: Sequence[str], pattern: str) -> Vocabulary:
    return Vocabulary(
        tokens=dict(enumerate(learnt.tokens)),
        merges=tuple(learnt.merges),
        added=tuple(AddedToken(len(learnt.tokens) + index, content) for index, content in enumerate(special_tokens)),
        pattern=pattern,
        eos=END_OF_TEXT if END_OF_TEXT in special_tokens else None,
    )


def _report(
    counter: CorpusCounter, totals: WordTotals, learnt: LearntMerges, counting_seconds: float, merging_seconds: float
) -> TrainingReport:
    merged_uses = learnt.uses[256:]
    return TrainingReport(
        bytes_counted=counter.position.bytes_counted,
        distinct_words=totals.distinct,
        words=totals.words,
        words_left_out=totals.left_out,
        replaced_bytes=counter.position.replaced,
        spilled_bytes=counter.spilled_bytes,
        single_use_share=float((merged_uses <= 1).sum() / max(1, len(merged_uses))),
        counting_seconds=counting_seconds,
        merging_seconds=merging_seconds,
        peak_memory=peak_memory(),
    )


def _is_blank(partitions: Partitions) -> bool:
    return all(word.decode().isspace() for table in partitions() for word, _ in table.items())


def _num_threads(sources: Sequence[Source], threads: int | None) -> int:
    if threads is not None and threads < 1:
        raise TokenizerError(f"the number of threads is {threads}; it must be 1 or more")
    cores = available_processors()
    if all(source.size for source in sources):
        cores = min(cores, 1 + sum(source.size for source in sources) // _BYTES_PER_THREAD)
    return threads or cores


def _table_bytes(limit: int) -> int:
    left = limit - resident_memory() - _RESERVE_BYTES
    if left < _RESERVE_BYTES:
        raise TokenizerError(
            f"the memory limit of {limit:,} bytes is too low: the program itself takes {resident_memory():,}, and "
            f"training at least {2 * _RESERVE_BYTES:,}"
        )
    return int(left * _SHARE_OF_TABLES)
