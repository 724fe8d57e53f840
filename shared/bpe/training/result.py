"""What a training returns."""

from dataclasses import dataclass

from shared.bpe.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainingReport:
    """What was counted and trained, and at what cost. "Words" are pretokens: what the pattern matches.

    Attributes:
        bytes_counted: Bytes of text read, special tokens included.
        distinct_words: Distinct pretokens.
        words: Occurrences of pretokens.
        min_count: Pretokens that occur less often were ignored.
        words_left_out: Occurrences of pretokens that were ignored.
        replaced_bytes: Number of U+FFFD that replaced bytes that are not UTF-8.
        spilled_bytes: Bytes of pretoken counts that were written to disk.
        single_use_share: Share of the merged tokens that occur at most once in the text when all merges are applied.
        counting_seconds: Time for reading and counting.
        merging_seconds: Time for laying out the pretokens and training merges.
        peak_memory: The most bytes of memory that the process held.
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
    """A trained tokenizer.

    Attributes:
        tokenizer: The tokenizer.
        requested_size: Tokens requested.
        reached_size: Tokens trained; fewer than requested if the text has too few pairs.
        bytes_per_token: Compression of the training text, without special tokens.
        is_blank: Whether the text holds nothing but white space.
        report: Counts and costs.
    """

    tokenizer: Tokenizer
    requested_size: int
    reached_size: int
    bytes_per_token: float
    is_blank: bool
    report: TrainingReport
