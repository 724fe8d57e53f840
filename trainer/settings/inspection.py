"""The options of `tokens`, with the advice that `--help` shows."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from trainer.errors import UsageError
from trainer.settings.fields import setting
from trainer.settings.text import DocumentSettings

_SHOWN = 256  # tokens, where nothing is asked for


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InspectionSettings(DocumentSettings):
    """Which tokens are shown, and how."""

    document: int | None = setting(None, minimum=0)
    """Show this document alone, counted from 0, without the id that ends it."""

    window: str | None = None
    """Show the tokens START:STOP, counted from 0, of the document if one is named; either may be left out. Default: the
    whole document; the first 256 tokens of a file; all of a text."""

    show: Literal["table", "text", "json"] = "table"
    """`table`: a line for each token. `text`: the tokens one after another, colored on a terminal, elsewhere as their
    exact bytes. `json`: an object for each token on a line of its own."""

    as_text: Annotated[bool, Parameter(name="--text", negative="")] = False
    """Take the argument as text even if it looks like the name of a file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bounds(is_file=True)

    def bounds(self, *, is_file: bool) -> tuple[int, int | None]:
        """The first token that is shown, and the one before which it ends."""
        if self.window is None:
            return 0, _SHOWN if is_file and self.document is None else None
        first, colon, last = self.window.partition(":")
        numbers = [int(text) if text.isdecimal() else None for text in (first or "0", last)]
        start, stop = numbers
        if not colon or start is None or (last and stop is None) or (stop is not None and stop <= start):
            raise UsageError(
                f"--window must be START:STOP with START below STOP, as in 0:100 or 500:; got {self.window!r}"
            )
        return start, stop
