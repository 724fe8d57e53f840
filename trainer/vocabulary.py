"""Text files to a tokenizer."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from shared.bpe import Tokenizer, TrainingReport, train_bpe_from_sources
from shared.bpe.corpus import SourceError
from shared.bpe.files import to_json, write_text
from trainer.corpus import CorpusError
from trainer.errors import TrainerError
from trainer.sources import open_sources

_STATE_FOLDER = "vocab-state"
_SAMPLE_BYTES = 1 << 20


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
        held_out_bytes_per_token: The same of a text that was not learnt from, if one was given.
        bytes_read: Of the text files.
        training: What was counted, and what it took.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    longest_token: bytes
    tokens_by_kind: dict[str, int]
    bytes_per_token: float
    held_out_bytes_per_token: float | None
    bytes_read: int
    training: TrainingReport

    def to_json(self) -> dict[str, Any]:
        """Everything but the tokenizer, of which the fingerprint stands for all."""
        seconds = self.training.counting_seconds
        return {
            "fingerprint": self.tokenizer.fingerprint,
            "requested_size": self.requested_size,
            "reached_size": self.reached_size,
            "longest_token": self.longest_token.decode(errors="replace"),
            "longest_token_bytes": len(self.longest_token),
            "tokens_by_kind": self.tokens_by_kind,
            "bytes_per_token": self.bytes_per_token,
            "held_out_bytes_per_token": self.held_out_bytes_per_token,
            "counting_bytes_per_second": self.bytes_read / seconds if seconds else None,
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
    errors: Literal["strict", "replace"] = "strict",
    held_out: Path | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
    merge_progress: Callable[[int, int], None] | None = None,
) -> VocabularyReport:
    """Learn a vocabulary from text and save it as a tokenizer folder, with the report beside it.

    Args:
        paths: As in `open_sources`; their order does not matter. With a custom pattern they are read whole.
        output: The folder for tokenizer.json, tokenizer_config.json and vocab_report.json; made if missing. What an
            interrupted run leaves is in its folder `vocab-state`.
        vocab_size: Tokens wanted, the 256 bytes and the special tokens included.
        special_tokens: Never cut, never counted, in order of their ids.
        pattern: The name of a pattern or a regular expression.
        min_count: Pieces that occur less often are left out.
        text_field: Of JSON lines and parquet files.
        errors: Whether bytes that are not UTF-8 are an error, or become U+FFFD.
        held_out: A text file that is not learnt from, to measure compression on its beginning.
        threads: As many as there are cores by default.
        memory_limit: Bytes of memory that the process may hold; half of the machine's by default.
        overwrite: Replace a tokenizer that exists.
        resume: Go on from what an interrupted run left.
        progress: Called with the bytes read so far.
        merge_progress: Called now and then with the merges learnt and the merges wanted.

    Raises:
        UsageError: If no files are given, or they are not there.
        CorpusError: If a file cannot be read as UTF-8.
        TokenizerError: If the settings cannot be met, or the memory is too small.
        TrainerError: If the output is in the way, or the files hold no text.
    """
    if (output / "tokenizer.json").exists() and not overwrite:
        raise TrainerError(f"{output / 'tokenizer.json'} exists; choose another folder, or allow it to be overwritten")
    sources = open_sources(paths, text_field=text_field, separator=special_tokens[0] if special_tokens else None)
    try:
        result = train_bpe_from_sources(
            sources,
            vocab_size,
            special_tokens=special_tokens,
            pattern=pattern,
            min_count=min_count,
            errors=errors,
            threads=threads,
            memory_limit=memory_limit,
            state=output / _STATE_FOLDER,
            resume=resume,
            bytes_progress=progress,
            progress=merge_progress,
        )
    except SourceError as error:
        raise CorpusError(str(error)) from None
    if result.is_blank:
        raise TrainerError("the files hold nothing but white space: there is no vocabulary to learn")
    tokens = result.tokenizer.vocabulary.tokens.values()
    report = VocabularyReport(
        tokenizer=result.tokenizer,
        requested_size=result.requested_size,
        reached_size=result.reached_size,
        longest_token=max(tokens, key=len),
        tokens_by_kind={**Counter(map(_kind, tokens)), "special": len(special_tokens)},
        bytes_per_token=result.bytes_per_token,
        held_out_bytes_per_token=None if held_out is None else _compression(result.tokenizer, held_out),
        bytes_read=result.report.bytes_counted,
        training=result.report,
    )
    result.tokenizer.save(output)
    write_text(output / "vocab_report.json", to_json(report.to_json()))
    return report


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


def _compression(tokenizer: Tokenizer, path: Path) -> float:
    try:
        with path.open("rb") as file:
            text = file.read(_SAMPLE_BYTES).decode(errors="ignore")
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
    return len(text.encode()) / max(1, len(tokenizer.encode(text, allowed_special="all")))
