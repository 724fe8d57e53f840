"""Tokens on standard output: in colors on a terminal, plain in a file or a pipe."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from trainer.console.token_text import token_text

_STYLES = ("black on cyan", "black on yellow", "black on green", "black on magenta")  # which every terminal has
_SPECIAL = "bold white on red"
_HEADING = f"{'index':>9} {'byte':>9} {'character':>9} {'id':>7}  {'bytes':<24} text"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token and its place.

    Attributes:
        index: Its number in the text or in the token file.
        byte: Bytes of tokens before it: in the text, the document, or the window of a token file.
        character: The same in characters; of a token within a character, that character's.
        id: Its id.
        data: Its bytes.
        is_special: Whether it is a special token.
    """

    index: int
    byte: int
    character: int
    id: int
    data: bytes
    is_special: bool


def print_token_table(tokens: Iterable[ShownToken]) -> None:
    """A line for each token. The text comes last, since its width on a terminal is not known."""
    console = Console(markup=False, emoji=False, highlight=False)
    for number, token in enumerate(tokens):
        if not number:
            _print(console, Text(_HEADING, style="bold"))
        line = f"{token.index:>9} {token.byte:>9} {token.character:>9} {token.id:>7}  {token.data.hex(' '):<24} "
        _print(console, Text(line).append(f"'{token_text(token.data)}'", style=_style(token)))


def print_token_text(tokens: Iterable[ShownToken]) -> None:
    """The tokens one after another. Elsewhere than on a terminal these are exactly their bytes."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        for token in tokens:
            sys.stdout.buffer.write(token.data)
        sys.stdout.buffer.flush()
        return
    for token in tokens:
        lines = "\n".join(map(token_text, token.data.split(b"\n")))
        console.print(Text(lines, style=_style(token)), end="", soft_wrap=True)
    console.print()


def print_token_json(tokens: Iterable[ShownToken]) -> None:
    """An object for each token, on a line of its own; `bytes` in hexadecimal."""
    for token in tokens:
        row = {
            "index": token.index,
            "byte": token.byte,
            "character": token.character,
            "id": token.id,
            "bytes": token.data.hex(),
            "text": token_text(token.data),
            "special": token.is_special,
        }
        sys.stdout.write(json.dumps(row) + "\n")


def _print(console: Console, line: Text) -> None:
    if console.is_terminal:
        console.print(line, soft_wrap=True)
    else:  # rich would end the program with an error when the reader of a pipe closes it
        sys.stdout.write(f"{line.plain}\n")


def _style(token: ShownToken) -> str:
    return _SPECIAL if token.is_special else _STYLES[token.index % len(_STYLES)]
