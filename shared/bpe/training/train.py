"""Learning a byte-level BPE vocabulary from text."""

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.bpe.errors import TokenizerError
from shared.bpe.patterns.named import PATTERNS, resolve_pattern
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.training.config import merges_wanted, reserved_spellings
from shared.bpe.training.corpus import Source, Texts
from shared.bpe.training.counter import BytesProgress, CorpusCounter, Errors
from shared.bpe.training.cutting import RegexCutter, ScannerCutter
from shared.bpe.training.layout import Partitions, WordTotals
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.merge_learner import LearntMerges, MergeLearner, MergingRoomError, Progress
from shared.bpe.training.state import TrainingState, TrainingStoppedError, identity_of, saved_when_stopped
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.system.cpu_count import available_processors
from shared.system.memory import peak_memory

END_OF_TEXT = "<|endoftext|>"

# More threads than there are such parts of the corpus would only make more tables.
_BYTES_PER_THREAD = 1 << 22


@dataclass(frozen=True)
class TrainingReport:
    """What was counted and learnt, and what it took.

    Attributes:
        bytes_counted: Of the text, special tokens included.
        distinct_words: Pieces that the pattern cuts, each counted once.
        words: Their occurrences.
        min_count: What words had to occur.
        words_left_out: Occurrences of words below that.
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
    min_count: int
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
        pattern: The name of a pattern or a regular expression; see `patterns.resolve_pattern`.
        progress: Called now and then with the merges learnt and the merges wanted.

    Raises:
        TokenizerError: If the settings cannot be met; raised before any text is read.

    >>> result = train_bpe(["low low lower"], 300, special_tokens=["<|endoftext|>"])
    >>> result.reached_size, result.tokenizer.encode("lower")
    (262, [257, 259])
    """
    texts_source = Texts("the texts", lambda _: map(encode_utf8, texts))
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
    should_stop: Callable[[], bool] = lambda: False,
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
        pattern: As in `train_bpe`. A custom one is run by the `regex` package: on one core, much more slowly, and
            with whole documents in memory.
        min_count: Pieces that occur less often are left out.
        errors: Whether bytes that are not UTF-8 are an error or become U+FFFD.
        threads: How many count; as many as there are cores by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default.
        state: A folder for what goes through the disk, and for what an interrupted training leaves: one that is asked
            to stop, or meets a KeyboardInterrupt. It is gone when training is complete. Sources that can be read only
            once leave nothing.
        resume: Go on from what is there; it is deleted otherwise.
        should_stop: Asked often, by any thread, whether to stop.
        bytes_progress: Called with the bytes counted so far.
        progress: As in `train_bpe`.

    Raises:
        TokenizerError: If the settings cannot be met, a source cannot be read, or the memory is too small.
        TrainingStoppedError: If it was asked to stop.
    """
    expression = resolve_pattern(pattern)
    num_merges = merges_wanted(vocab_size, special_tokens)
    if min_count < 1:
        raise TokenizerError(f"the minimum count is {min_count}; it must be 1 or more")
    named = next((name for name, each in PATTERNS.items() if each == expression), None)
    num_threads = _num_threads(sources, threads)
    counting_threads = num_threads if named else 1
    room = MemoryBudget(memory_limit)
    with ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ownlm-"))) / "counts"
        kept = TrainingState(folder, identity_of(expression, special_tokens, errors, sources))
        counter = CorpusCounter(
            ScannerCutter(named, special_tokens) if named else RegexCutter(expression, special_tokens),
            threads=counting_threads,
            errors=errors,
            table_bytes=room.tables,
            longest=room.chunks // counting_threads,
            longest_word=room.pretoken,
            runs=kept.runs,
        )
        if resume:
            kept.folder.load()  # before anything is made or deleted
        stack.enter_context(kept.folder.locked())
        if resume:
            counter.resume(kept.load())
        else:
            kept.clear()
        is_repeatable = all(source.version is not None for source in sources)
        stack.enter_context(saved_when_stopped(kept, counter, can_save=state is not None and is_repeatable))
        begin = time.monotonic()
        counter.count(sources, bytes_progress, should_stop)
        _check_stop(should_stop)
        is_blank = _is_blank(counter.partitions())
        counted = time.monotonic()
        learner = _learner(
            counter, num_merges, reserved_spellings(special_tokens), min_count=min_count, room=room, threads=num_threads
        )

        def told(done: int, wanted: int) -> None:
            _check_stop(should_stop)
            if progress is not None:
                progress(done, wanted)

        learnt = learner.learn(told)
        report = _report(
            counter,
            learner.totals,
            learnt,
            min_count=min_count,
            counting_seconds=counted - begin,
            merging_seconds=time.monotonic() - counted,
        )
    totals = learner.totals
    del learner, counter  # for their memory
    tokenizer = Tokenizer(_vocabulary(learnt, special_tokens, expression))
    return TrainingResult(
        tokenizer,
        requested_size=vocab_size,
        reached_size=len(tokenizer),
        bytes_per_token=totals.num_bytes / max(1, int(learnt.uses.sum())),
        is_blank=is_blank,
        report=report,
    )


def _learner(
    counter: CorpusCounter,
    num_merges: int,
    reserved: Iterable[bytes],
    *,
    min_count: int,
    room: MemoryBudget,
    threads: int,
) -> MergeLearner:
    def learner() -> MergeLearner:
        return MergeLearner(
            counter.partitions(),
            num_merges,
            reserved=reserved,
            min_count=min_count,
            max_bytes=room.for_merging(),
            threads=threads,
        )

    try:
        return learner()
    except MergingRoomError:
        if not counter.is_in_memory:
            raise
    # Without the table of words beside them they may fit.
    counter.spill()
    return learner()


def _check_stop(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise TrainingStoppedError("training was asked to stop")


def _vocabulary(learnt: LearntMerges, special_tokens: Sequence[str], pattern: str) -> Vocabulary:
    return Vocabulary(
        tokens=dict(enumerate(learnt.tokens)),
        merges=tuple(learnt.merges),
        added=tuple(AddedToken(len(learnt.tokens) + index, content) for index, content in enumerate(special_tokens)),
        pattern=pattern,
        eos=END_OF_TEXT if END_OF_TEXT in special_tokens else None,
    )


def _report(counter: CorpusCounter, totals: WordTotals, learnt: LearntMerges, **known: Any) -> TrainingReport:
    merged_uses = learnt.uses[256:]
    return TrainingReport(
        bytes_counted=counter.position.bytes_counted,
        distinct_words=totals.distinct,
        words=totals.words,
        words_left_out=totals.left_out,
        replaced_bytes=counter.position.replaced,
        spilled_bytes=counter.spilled_bytes,
        single_use_share=float((merged_uses <= 1).sum() / max(1, len(merged_uses))),
        peak_memory=peak_memory(),
        **known,
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
