"""The options of `evaluate-tokenizers`, with the advice that `--help` shows."""

import sys
from dataclasses import dataclass

from cyclopts import Parameter

from trainer.settings.fields import setting
from trainer.settings.text import DocumentSettings
from trainer.text.sizes import parse_limit, parse_size

_BEGINNING = 64 << 20


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(DocumentSettings):
    """How tokenizers are compared."""

    max_size: str | None = None
    """Read the beginning of each text only, up to this size. Default: 64M, or with --sample the whole text."""

    sample: int | None = setting(None, minimum=1)
    """Compare on this many documents, drawn at random from each text, rather than on its beginning."""

    seed: int = setting(0, minimum=0)
    """Decides which documents are drawn for --sample, by their numbers in the text alone."""

    longest: int = setting(3, minimum=0, affects="watching")
    """How many of the longest tokens of each vocabulary are shown."""

    project: str | None = setting(None, affects="watching")
    """Also read each whole text with each tokenizer as `encode` does, and show how long this much text would take at
    that rate: 825GB is the Pile. Units are powers of 1024."""

    threads: int | None = setting(None, minimum=1, affects="machine")
    """Threads that encode. Default: one for each core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_limit(self.max_size)
        parse_limit(self.project)

    @property
    def max_bytes(self) -> int:
        """How much of each text is read for the comparison."""
        if self.max_size is not None:
            return parse_size(self.max_size)
        return _BEGINNING if self.sample is None else sys.maxsize
