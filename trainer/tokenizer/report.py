"""What came of training a tokenizer."""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from shared.bpe import Tokenizer, TrainingReport, TrainingResult
from shared.system.memory import peak_memory
from trainer.tokenizer.held_out import HeldOut


@dataclass(frozen=True)
class TokenizerReport:
    """A trained tokenizer, and figures about it.

    Attributes:
        tokenizer: The tokenizer that was saved.
        requested_size: Tokens asked for.
        reached_size: Tokens that it has, fewer where the text has too few pairs.
        longest_token: The bytes of the longest ordinary token.
        tokens_by_kind: How many tokens there are of letters, digits, white space, other characters, of several of
            these, of incomplete characters, of single bytes, and special ones.
        bytes_per_token: Bytes of the training text for each token that it becomes.
        held_out: The text kept out of the training, if any.
        held_out_bytes_per_token: `bytes_per_token` of that.
        bytes_read: Of the training text.
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

    @classmethod
    def of(cls, result: TrainingResult, held_out: HeldOut | None) -> "TokenizerReport":
        """The figures of a training."""
        vocabulary = result.tokenizer.vocabulary
        tokens = vocabulary.tokens.values()
        return cls(
            tokenizer=result.tokenizer,
            requested_size=result.requested_size,
            reached_size=result.reached_size,
            longest_token=max(tokens, key=len),
            tokens_by_kind={**Counter(map(_kind, tokens)), "special": len(vocabulary.added)},
            bytes_per_token=result.bytes_per_token,
            held_out=held_out,
            held_out_bytes_per_token=None if held_out is None else held_out.bytes_per_token(result.tokenizer),
            bytes_read=result.report.bytes_counted,
            training=replace(result.report, peak_memory=peak_memory()),
        )

    @property
    def bytes_per_second(self) -> float:
        """Of reading and counting."""
        return self.bytes_read / max(self.training.counting_seconds, 1e-9)

    def lines(self) -> list[str]:
        """The log lines."""
        training = self.training
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.tokens_by_kind.items()))
        held_out = "nothing was held out (--held-out)"
        if self.held_out is not None and self.held_out_bytes_per_token is not None:
            held_out = f"{self.held_out_bytes_per_token:.2f} on held-out text: {self.held_out.name}"
        lines = [
            f"read {self.bytes_read:,} bytes in {training.counting_seconds:.2f} s ({self.bytes_per_second / 1e6:.0f} "
            f"MB/s): {training.words:,} pretokens, {training.distinct_words:,} of them distinct",
            f"merged pairs in {training.merging_seconds:.2f} s; peak memory {training.peak_memory / 1e6:.0f} MB",
            f"bytes per token: {self.bytes_per_token:.2f} on the training text, {held_out}",
            f"tokens: {kinds}; longest: {self.longest_token.decode(errors='replace')!r}",
            f"tokens used once or never when all merges are applied: {training.single_use_share:.1%}",
        ]
        if training.spilled_bytes:
            lines.append(f"{training.spilled_bytes:,} bytes of counts did not fit into memory and went to disk")
        if training.words_left_out:
            lines.append(
                f"left out: {training.words_left_out:,} pretokens that occur fewer than {training.min_count} times"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Everything but the tokenizer, of which only the fingerprint is given."""
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
