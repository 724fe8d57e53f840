"""Text to a tokenizer."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shared.bpe import (
    SourceError,
    Tokenizer,
    TokenizerError,
    TrainingReport,
    TrainingResult,
    resolve_pattern,
    train_bpe_from_sources,
)
from shared.bpe.training import Errors, TrainingStoppedError
from shared.system.files import to_json, write_text
from shared.system.memory import peak_memory
from trainer.console.signals import stop_on_signals
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.text.sources import open_sources
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.held_out import HeldOut, from_file, hold_out


@dataclass(frozen=True)
class VocabularyReport:
    """What was learnt.

    Attributes:
        tokenizer: The tokenizer that was saved.
        requested_size: Tokens asked for.
        reached_size: Tokens learnt, fewer where the text has too few pairs.
        longest_token: The bytes of the longest ordinary token.
        tokens_by_kind: How many tokens there are of letters, digits, white space, other characters, of several of
            these, of incomplete characters, of single bytes, and special ones.
        bytes_per_token: Bytes of the text for each token that it becomes.
        held_out: What was not learnt from, if anything.
        held_out_bytes_per_token: `bytes_per_token` of that.
        bytes_read: Of the text that was learnt from.
        training: What was counted, and what it took.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    longest_token: bytes
    tokens_by_kind: dict[str, int]
    bytes_per_token: float
    held_out: HeldOut | None
    held_out_bytes_per_token: float | None
    bytes_read: int
    training: TrainingReport

    @property
    def bytes_per_second(self) -> float:
        """Of reading and counting."""
        return self.bytes_read / max(self.training.counting_seconds, 1e-9)

    def lines(self) -> list[str]:
        """What matters of it, for people."""
        training = self.training
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.tokens_by_kind.items()))
        held_out = "nothing was held out (--held-out)"
        if self.held_out is not None and self.held_out_bytes_per_token is not None:
            held_out = f"{self.held_out_bytes_per_token:.2f} of what was held out, {self.held_out.name}"
        lines = [
            f"read {self.bytes_read:,} bytes in {training.counting_seconds:.2f} s ({self.bytes_per_second / 1e6:.0f} "
            f"MB/s): {training.words:,} words, {training.distinct_words:,} of them distinct",
            f"learnt in {training.merging_seconds:.2f} s; memory at most {training.peak_memory / 1e6:.0f} MB",
            f"bytes for each token: {self.bytes_per_token:.2f} of the text, {held_out}",
            f"tokens: {kinds}; the longest {self.longest_token.decode(errors='replace')!r}",
            f"tokens used once or never when all merges are applied: {training.single_use_share:.1%}",
        ]
        if training.spilled_bytes:
            lines.append(f"{training.spilled_bytes:,} bytes of counts went through the disk")
        if training.words_left_out:
            lines.append(
                f"left out: {training.words_left_out:,} words, which occur fewer than {training.min_count} times"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Everything but the tokenizer, of which the fingerprint stands for all."""
        return {
            "fingerprint": self.tokenizer.fingerprint,
            "requested_size": self.requested_size,
            "reached_size": self.reached_size,
            "longest_token": self.longest_token.decode(errors="replace"),
            "longest_token_bytes": len(self.longest_token),
            "tokens_by_kind": self.tokens_by_kind,
            "bytes_per_token": self.bytes_per_token,
            "held_out": None if self.held_out is None else self.held_out.name,
            "held_out_bytes": 0 if self.held_out is None else self.held_out.size,
            "held_out_bytes_per_token": self.held_out_bytes_per_token,
            "counting_bytes_per_second": self.bytes_per_second,
            **asdict(self.training),
        }


def learn_vocabulary(
    paths: Sequence[Path],
    output: Path,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = ("<|endoftext|>",),
    pattern: str = "gpt2",
    min_count: int = 1,
    text_field: str = "text",
    errors: Errors = "strict",
    held_out: Path | int = 0,
    threads: int | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    merge_progress: Callable[[int, int], None] | None = None,
) -> VocabularyReport:
    """Learn a vocabulary from text and save it as a tokenizer folder, with the report beside it.

    SIGINT and SIGTERM end it with nothing written.

    Args:
        paths: As in `open_inputs`; their order does not matter.
        output: The folder for tokenizer.json, tokenizer_config.json and vocab_report.json; made if missing.
        vocab_size: Tokens wanted, the 256 bytes and the special tokens included.
        special_tokens: Never cut, never counted, in order of their ids.
        pattern: The name of a pattern or a regular expression.
        min_count: Pieces that occur less often are left out.
        text_field: Of JSON lines and parquet files.
        errors: Whether bytes that are not UTF-8 are an error, or become U+FFFD.
        held_out: A file to measure compression on the beginning of, or about how many bytes of the text to keep
            for that, instead of learning from them: see `hold_out`.
        threads: As many as there are cores by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default.
        overwrite: Replace a tokenizer that exists.
        progress: Called with the bytes read so far.
        merge_progress: Called now and then with the merges learnt and the merges wanted.

    Raises:
        UsageError: If no files are given, or they are not there, or the pattern is not
            supported.
        CorpusError: If a file cannot be read as UTF-8.
        TokenizerError: If the settings cannot be met, or the memory is too small.
        TrainerError: If the output is in the way, or the files hold no text.
        InterruptedRunError: If a signal stopped it.
    """
    try:
        resolve_pattern(pattern)
    except TokenizerError as error:
        raise UsageError(f"--pattern: {error}") from None
    _refuse_existing(output, overwrite=overwrite)
    with stop_on_signals() as stop:
        try:
            sources = open_sources(paths, text_field=text_field, separator=next(iter(special_tokens), None))
            sample = None
            if isinstance(held_out, Path):
                sample = from_file(held_out, special_tokens, text_field, errors)
            elif held_out:
                sources, sample = hold_out(sources, held_out, special_tokens, errors)
            result = train_bpe_from_sources(
                sources,
                vocab_size,
                special_tokens=special_tokens,
                pattern=pattern,
                min_count=min_count,
                errors=errors,
                threads=threads,
                memory_limit=memory_limit,
                should_stop=lambda: bool(stop),
                bytes_progress=progress,
                progress=merge_progress,
            )
        except SourceError as error:
            raise CorpusError(str(error)) from None
        except TrainingStoppedError:
            assert stop.signal_number is not None
            raise InterruptedRunError(
                "stopped; nothing was written: run the same command again", stop.signal_number
            ) from None
        if result.is_blank:
            raise TrainerError("the files hold nothing but white space: there is no vocabulary to learn")
        report = _report(result, sample, len(special_tokens))
        result.tokenizer.save(output)
        write_text(output / "vocab_report.json", to_json(report.to_json()))
    return report


def _report(result: TrainingResult, sample: HeldOut | None, num_special: int) -> VocabularyReport:
    tokens = result.tokenizer.vocabulary.tokens.values()
    return VocabularyReport(
        tokenizer=result.tokenizer,
        requested_size=result.requested_size,
        reached_size=result.reached_size,
        longest_token=max(tokens, key=len),
        tokens_by_kind={**Counter(map(_kind, tokens)), "special": num_special},
        bytes_per_token=result.bytes_per_token,
        held_out=sample,
        held_out_bytes_per_token=None if sample is None else sample.bytes_per_token(result.tokenizer),
        bytes_read=result.report.bytes_counted,
        training=replace(result.report, peak_memory=peak_memory()),
    )


def _refuse_existing(output: Path, *, overwrite: bool) -> None:
    if (output / "tokenizer.json").exists() and not overwrite:
        raise TrainerError(
            f"{output / 'tokenizer.json'} exists; choose another --output, or replace it with --overwrite"
        )


def _kind(token: bytes) -> str:
    if len(token) == 1:
        return "single byte"
    try:
        text = token.decode().removeprefix(" ")
    except UnicodeDecodeError:
        return "incomplete characters"
    kinds = {"letters": str.isalpha, "digits": str.isdecimal, "white space": str.isspace}
    for kind, holds in kinds.items():
        if holds(text or " "):
            return kind
    return "mixed" if any(character.isalnum() or character.isspace() for character in text) else "other"
