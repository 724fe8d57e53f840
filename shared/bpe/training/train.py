"""Training a byte-level BPE vocabulary on text: count pretokens, lay them out, train merges."""

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from shared.bpe.errors import TokenizerError, TrainingStoppedError
from shared.bpe.tokenizer import Tokenizer
from shared.bpe.training.config import TrainingConfig
from shared.bpe.training.corpus import Errors, Source, Texts
from shared.bpe.training.counter import BytesProgress, CorpusCounter, counter_for
from shared.bpe.training.layout import Partitions, PretokenTotals
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.merges import LayoutTooLargeError, MergeProgress, MergeTrainer, TrainedMerges
from shared.bpe.training.part_counts import CountElsewhere
from shared.bpe.training.result import TrainingReport, TrainingResult
from shared.bpe.training.spill import SpilledRuns
from shared.bpe.vocabulary import AddedToken, Vocabulary, encode_utf8
from shared.system.cpu_count import available_processors
from shared.system.memory import peak_memory
from shared.system.stages import Stage, no_stage

END_OF_TEXT = "<|endoftext|>"

# With fewer bytes for each, more threads would only mean more tables to join.
_BYTES_PER_THREAD = 1 << 22
# Threads that may be asked for, or four times the processors: more gain nothing, and each has a table.
_MOST_THREADS = 16


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    pattern: str = "gpt2",
    progress: MergeProgress | None = None,
) -> TrainingResult:
    r"""Train a vocabulary: the most frequent pair of adjacent tokens becomes a token, again and again.

    Of equally frequent pairs, the lexicographically greatest pair of byte strings is merged first, so that the result
    depends on the text alone. Ids are the 256 bytes, the merges in order, then the special tokens.

    Args:
        texts: Parts of the corpus; no pretoken spans two of them.
        vocab_size: Number of tokens, the bytes and special tokens included.
        special_tokens: Tokens that are never split or counted, in order of their ids. They may not have the spelling
            of a single byte.
        pattern: The name of a pattern or a regular expression; see `resolve_pattern`.
        progress: Called now and then with the number of merges trained and wanted.

    Raises:
        TokenizerError: The settings cannot be met; raised before any text is read.

    >>> result = train_bpe(["low low lower"], 300, special_tokens=["<|endoftext|>"])
    >>> result.reached_size, result.tokenizer.encode("lower")
    (262, [257, 259])
    """
    source = Texts("the texts", lambda _: map(encode_utf8, texts))
    return train_bpe_from_sources(
        [source], vocab_size, special_tokens=special_tokens, pattern=pattern, progress=progress, threads=1
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
    should_stop: Callable[[], bool] = lambda: False,
    stage: Stage = no_stage,
    bytes_progress: BytesProgress | None = None,
    progress: MergeProgress | None = None,
    count_elsewhere: CountElsewhere | None = None,
) -> TrainingResult:
    """`train_bpe` on files and streams, on all cores and in bounded memory.

    The result is the same for any number of threads, any memory limit and any order of the sources.

    Args:
        sources: The corpus.
        vocab_size: As in `train_bpe`.
        special_tokens: As in `train_bpe`.
        pattern: As in `train_bpe`. A custom regular expression is run by the `regex` package: on one core, much more
            slowly, and with whole documents in memory.
        min_count: Pretokens that occur less often are ignored.
        errors: Whether bytes that are not UTF-8 are an error ("strict") or become U+FFFD ("replace").
        threads: Number of threads; as many as there are cores by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default. Counts that do not
            fit are written to a temporary folder (environment variable TMPDIR).
        should_stop: Called often, from any thread; training stops once it returns True.
        stage: Called for each stage of the work, from any thread.
        bytes_progress: Called with the number of bytes counted so far.
        progress: As in `train_bpe`.
        count_elsewhere: Called with the settings for the counts of the corpus, instead of counting it here.

    Raises:
        TokenizerError: The settings cannot be met, a source cannot be read, or the memory limit is too low.
        TrainingStoppedError: `should_stop` returned True.
    """
    config = TrainingConfig(vocab_size, special_tokens, pattern, min_count, errors)
    threads = _num_threads(sources, threads)
    budget = MemoryBudget(memory_limit)
    with tempfile.TemporaryDirectory(prefix="ownlm-") as folder:
        begin = time.monotonic()
        counter = counter_for(config, budget, SpilledRuns(Path(folder)), threads=threads, stage=stage)
        if count_elsewhere is None:
            counter.count(sources, bytes_progress, should_stop)
        else:
            for part in count_elsewhere(config):
                part.add_to(counter)
                if bytes_progress is not None:
                    bytes_progress(counter.bytes_counted)
        _check_stop(should_stop)
        with stage("join counts"):
            is_blank = _is_blank(counter.partitions())
        counted = time.monotonic()
        totals, trained = _train_merges(
            counter, config, threads, budget, progress=_stoppable(progress, should_stop), stage=stage
        )
        report = _report(counter, config, totals, trained, (begin, counted, time.monotonic()))
    del counter  # for its memory
    with stage("make tokenizer"):
        tokenizer = Tokenizer(_vocabulary(trained, config))
    return TrainingResult(
        tokenizer,
        requested_size=vocab_size,
        reached_size=len(tokenizer),
        bytes_per_token=totals.num_bytes / max(1, int(trained.uses.sum())),
        is_blank=is_blank,
        report=report,
    )


def _train_merges(
    counter: CorpusCounter,
    config: TrainingConfig,
    threads: int,
    budget: MemoryBudget,
    *,
    progress: MergeProgress,
    stage: Stage,
) -> tuple[PretokenTotals, TrainedMerges]:
    def trainer() -> MergeTrainer:
        with stage("lay out pretokens"):
            return MergeTrainer(
                counter.partitions(),
                config.num_merges,
                reserved=config.reserved,
                min_count=config.min_count,
                max_bytes=budget.for_merging(),
                threads=threads,
            )

    try:
        merges = trainer()
    except LayoutTooLargeError:
        if not counter.is_in_memory:
            raise
        # Without the table of counts beside them, the pretokens may fit.
        counter.spill()
        merges = trainer()
    with stage("train merges"):
        return merges.totals, merges.train(progress)


def _stoppable(progress: MergeProgress | None, should_stop: Callable[[], bool]) -> MergeProgress:
    def report(done: int, wanted: int) -> None:
        _check_stop(should_stop)
        if progress is not None:
            progress(done, wanted)

    return report


def _check_stop(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise TrainingStoppedError("training was asked to stop")


def _vocabulary(trained: TrainedMerges, config: TrainingConfig) -> Vocabulary:
    first = len(trained.tokens)
    return Vocabulary(
        tokens=dict(enumerate(trained.tokens)),
        merges=tuple(trained.merges),
        added=tuple(AddedToken(first + index, content) for index, content in enumerate(config.special_tokens)),
        pattern=config.expression,
        eos=END_OF_TEXT if END_OF_TEXT in config.special_tokens else None,
    )


def _report(
    counter: CorpusCounter,
    config: TrainingConfig,
    totals: PretokenTotals,
    trained: TrainedMerges,
    times: tuple[float, float, float],
) -> TrainingReport:
    begin, counted, end = times
    merged_uses = trained.uses[256:]
    return TrainingReport(
        bytes_counted=counter.bytes_counted,
        distinct_words=totals.distinct,
        words=totals.occurrences,
        min_count=config.min_count,
        words_left_out=totals.ignored,
        replaced_bytes=counter.num_replaced,
        spilled_bytes=counter.spilled_bytes,
        single_use_share=float((merged_uses <= 1).sum() / max(1, len(merged_uses))),
        counting_seconds=counted - begin,
        merging_seconds=end - counted,
        peak_memory=peak_memory(),
    )


def _is_blank(partitions: Partitions) -> bool:
    return all(pretoken.decode().isspace() for table in partitions() for pretoken, _ in table.items())


def _num_threads(sources: Sequence[Source], threads: int | None) -> int:
    if threads is not None and threads < 1:
        raise TokenizerError(f"the number of threads must be at least 1, found {threads}")
    cores = available_processors()
    if all(source.size for source in sources):
        cores = min(cores, 1 + sum(source.size for source in sources) // _BYTES_PER_THREAD)
    return min(threads or cores, max(_MOST_THREADS, 4 * available_processors()))
