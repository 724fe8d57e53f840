"""The options of `evaluate-tokenizers`, with the advice that `--help` shows."""

from dataclasses import dataclass

from cyclopts import Parameter

from trainer.settings.fields import setting
from trainer.settings.text import DocumentSettings
from trainer.text.sizes import parse_size


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(DocumentSettings):
    """How tokenizers are compared."""

    max_size: str = "64M"
    """Encode the beginning of each text only, up to this size. Documents are held in memory."""

    threads: int | None = setting(None, minimum=1, affects="machine")
    """Threads that encode. Default: one for each core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_size(self.max_size)
