"""Training a tokenizer on text."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from shared.bpe import SourceError, TokenizerError, TrainingResult, resolve_pattern, train_bpe_from_sources
from shared.bpe.training import TrainingStoppedError
from shared.system.files import to_json_bytes
from shared.system.stages import Stage, no_stage
from trainer.cluster.ray_cluster import check_ray, ray_cluster
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.vocab import VocabSettings
from trainer.storage.remote_folder import open_folder
from trainer.text.sources import open_sources
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.cluster_counting import count_on_cluster
from trainer.tokenizer.held_out import HeldOut, from_file, hold_out, parse_held_out
from trainer.tokenizer.report import TokenizerReport


def train_tokenizer(
    paths: Sequence[Path],
    output: Path,
    settings: VocabSettings,
    *,
    stage: Stage = no_stage,
    progress: Callable[[int], None] | None = None,
    merge_progress: Callable[[int, int], None] | None = None,
) -> TokenizerReport:
    """Train a tokenizer on text and save it in a directory, with vocab_report.json beside it.

    It appears whole or not at all. Nothing is kept of an interrupted training: a gigabyte takes seconds.

    Args:
        paths: As in `open_inputs`; their order does not matter.
        output: The directory; made if missing.
        settings: How it is trained.
        stage: Called for each stage of the work, from any thread.
        progress: Called with the bytes read so far.
        merge_progress: Called now and then with the merges done and the merges wanted.

    Raises:
        UsageError: If no files are given, or they do not exist, or the pattern is not supported.
        CorpusError: If a file cannot be read as UTF-8.
        TokenizerError: If the settings cannot be met, or the memory is too small.
        TrainerError: If the output exists already, or the files contain no text.
        InterruptedRunError: If a signal stopped it.
    """
    try:
        resolve_pattern(settings.pattern)
    except TokenizerError as error:
        raise UsageError(f"--pattern: {error}") from None
    folder = open_folder(output)
    if folder.exists("tokenizer.json") and not settings.overwrite:
        raise TrainerError(
            f"{folder.path('tokenizer.json')} exists; choose another --output, or replace it with --overwrite"
        )
    with stop_on_signals() as stop:
        try:
            result, sample = _train(paths, settings, stop, stage, progress=progress, merge_progress=merge_progress)
        except SourceError as error:
            raise CorpusError(str(error)) from None
        except (TrainingStoppedError, InterruptedRunError):
            assert stop.signal_number is not None
            raise InterruptedRunError(
                "stopped before the tokenizer was complete; nothing was written: run the same command again",
                stop.signal_number,
            ) from None
        if result.is_blank:
            raise TrainerError("the files contain only white space: there is nothing to train a tokenizer on")
        with stage("measure compression"):
            report = TokenizerReport.of(result, sample)
        with stage("save"):
            files = {**result.tokenizer.files(), "vocab_report.json": to_json_bytes(report.to_json())}
            for name in sorted(files, key=lambda name: name == "tokenizer.json"):  # which says that all is there
                folder.write(name, files[name])
    return report


def _train(
    paths: Sequence[Path],
    settings: VocabSettings,
    stop: StopRequest,
    stage: Stage,
    *,
    progress: Callable[[int], None] | None,
    merge_progress: Callable[[int, int], None] | None,
) -> tuple[TrainingResult, HeldOut | None]:
    special_tokens, errors = settings.special_token, settings.errors
    if settings.ray is not None:
        check_ray()
    sources = open_sources(paths, text_field=settings.text_field, separator=next(iter(special_tokens), None))
    held_out, sample = parse_held_out(settings.held_out, paths), None
    with stage("hold out"):
        if isinstance(held_out, Path):
            sample = from_file(held_out, special_tokens, settings.text_field, errors)
        elif held_out:
            sources, sample = hold_out(sources, held_out, special_tokens, errors)
    with ExitStack() as stack:
        elsewhere = None
        if settings.ray is not None:
            elsewhere = partial(count_on_cluster, stack.enter_context(ray_cluster(settings.ray, stop)), sources)
        result = train_bpe_from_sources(
            sources,
            settings.vocab_size,
            special_tokens=special_tokens,
            pattern=settings.pattern,
            min_count=settings.min_count,
            errors=errors,
            threads=settings.threads,
            memory_limit=settings.memory_bytes,
            should_stop=lambda: bool(stop),
            stage=stage,
            bytes_progress=progress,
            progress=merge_progress,
            count_elsewhere=elsewhere,
        )
    if result.is_blank and sample is not None and not isinstance(held_out, Path):
        raise TrainerError(f"the held-out {sample.size:,} bytes leave only white space to train on: lower --held-out")
    return result, sample
