"""The options of every command that reads text, with the advice that `--help` shows."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, setting
from trainer.text.sizes import parse_limit

READING = Group("How text is read", sort_key=2)


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """How text is read."""

    text_field: Annotated[str, Parameter(group=READING)] = "text"
    """Field of JSON lines, or column of parquet files, that holds the text of a document."""

    errors: Annotated[Literal["strict", "replace"], Parameter(group=READING)] = "strict"
    """`strict` stops at bytes that are not UTF-8; `replace` turns them into U+FFFD."""

    memory_limit: Annotated[str | None, Parameter(group=READING)] = setting(None, affects="machine")
    """Memory that may be used, such as 500M or 8G. Default: half of the machine's. A line of JSON, a record, or text
    without whitespace may have about a hundredth of it; longer ones are refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_limit(self.memory_limit)

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit as a number; None if it is not set."""
        return parse_limit(self.memory_limit)


@dataclass(frozen=True, kw_only=True)
class DocumentSettings(TextSettings):
    """How text is read and split into documents."""

    separator: Annotated[str, Parameter(group=READING)] = "<|endoftext|>"
    """Separator between documents in text files; it is not part of them."""

    no_separator: Annotated[bool, Parameter(group=READING, negative="")] = False
    """Take each text file as one document, and nothing in it as special."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator:
            raise UsageError("--separator is empty; --no-separator makes each text file one document")

    @property
    def document_separator(self) -> str | None:
        """What separates documents; None where each text file is one."""
        return None if self.no_separator else self.separator


def refuse_threads(ray: str | None, threads: int | None) -> None:
    """Raise a UsageError if both are set: each task of a Ray cluster has one thread, and a processor of its own."""
    if ray is not None and threads is not None:
        raise UsageError("--threads is for one machine; with --ray there is a task for each processor of the cluster")
