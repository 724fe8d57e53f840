"""How long encoding a larger text would take, from the rate at which whole texts are encoded."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from shared.bpe import Tokenizer
from trainer.console.progress import Report
from trainer.errors import UsageError
from trainer.settings.tokenizer_comparison import ComparisonSettings
from trainer.text.memory import EncodingMemory
from trainer.text.sources import Input
from trainer.tokens.encoded_chunk import EndOfInput
from trainer.tokens.parallel_encoder import ParallelEncoder


@dataclass(frozen=True)
class Rate:
    """One pass over a whole text.

    Attributes:
        bytes: Of text, separators included.
        tokens: What it became.
        seconds: What that took.
        threads: How many encoded.
    """

    bytes: int
    tokens: int
    seconds: float
    threads: int

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        return self.bytes / self.seconds

    def seconds_for(self, size: int) -> float:
        """Time for so many bytes of text at this rate."""
        return size / self.bytes_per_second

    def tokens_for(self, size: int) -> int:
        """Tokens that so many bytes of text would become."""
        return round(size * self.tokens / self.bytes)


def check_repeatable(inputs: Sequence[Input]) -> None:
    """Raise a UsageError if an input can be read only once: every tokenizer reads it again."""
    for given in inputs:
        if given.content.version is None:
            raise UsageError(
                f"--project reads each text again for each tokenizer, and {given.content.name} can be read only once; "
                "write it to a file"
            )


def encoding_rate(
    tokenizer: Tokenizer, inputs: Sequence[Input], settings: ComparisonSettings, threads: int, report: Report
) -> Rate:
    """Read and encode all of the inputs once, as `encode` does, but without writing the tokens.

    Args:
        tokenizer: One that has not encoded these texts before: its caches would be warm.
        inputs: The text.
        settings: How it is read.
        threads: How many encode.
        report: Shows the bytes so far.

    Raises:
        CorpusError: If an input cannot be read as UTF-8, or a part of it does not fit into the memory.
    """
    tokenizer.warm_up()
    separator = settings.document_separator if settings.document_separator in tokenizer.special_tokens else None
    memory = EncodingMemory(settings.memory_bytes, threads)
    end_of_text_id = 0  # after records, where any id counts alike
    encoder = ParallelEncoder(tokenizer, separator, end_of_text_id, settings.errors, memory, threads)
    read = tokens = 0
    begin = time.perf_counter()
    for item in encoder.encode(inputs):
        if not isinstance(item, EndOfInput):
            read += item.text_bytes
            tokens += len(item.ids)
            report(read)
    return Rate(read, tokens, time.perf_counter() - begin, threads)
