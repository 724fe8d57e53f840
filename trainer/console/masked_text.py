"""Documents on standard output with tokens excluded from the loss dimmed; marked by signs where there is no color."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from trainer.console.token_text import token_text

_DIMMED = "bright_black"


class ShownPart(NamedTuple):
    """A token.

    Attributes:
        data: Its bytes.
        is_counted: Whether the loss counts it.
        is_special: Whether it is a special token.
    """

    data: bytes
    is_counted: bool
    is_special: bool


@dataclass(frozen=True)
class ShownDocument:
    """A document.

    Attributes:
        number: From 0.
        parts: Its tokens, that at its end included, or the first of them.
        left_out: Tokens that follow these.
    """

    number: int
    parts: list[ShownPart]
    left_out: int = 0


def print_document(document: ShownDocument) -> None:
    """Print a document, under a line that says how many tokens it has."""
    console = Console(markup=False, emoji=False, highlight=False)
    counted = sum(part.is_counted for part in document.parts)
    heading = f"document {document.number:,}: {len(document.parts):,} tokens, {counted:,} counted"
    if document.left_out:
        heading += f", and {document.left_out:,} more"
    if not console.is_terminal or console.no_color:
        sys.stdout.write("".join(f"{line}\n" for line in (heading, *_lines(document.parts))))
        return
    console.print(Text(heading, style="bold underline"), soft_wrap=True)
    for (is_counted, is_special), parts in groupby(document.parts, lambda part: (part.is_counted, part.is_special)):
        data = b"".join(part.data for part in parts)
        style = " ".join(["bold"] * is_special + [_DIMMED] * (not is_counted))
        text = "\n".join(map(token_text, data.split(b"\n")))
        console.print(Text(text, style=style), end="", soft_wrap=True)
    console.print()


def _lines(parts: Iterable[ShownPart]) -> Iterable[str]:
    """A line for each run of tokens that the loss counts, or does not."""
    for is_counted, run in groupby(parts, lambda part: part.is_counted):
        yield f"{'+' if is_counted else '-'} {token_text(b''.join(part.data for part in run))}"
