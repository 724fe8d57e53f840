"""Text from files in Markdown and YAML, where none of it may become markup."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from shared.system.errors import escape_unprintable


def code(text: str) -> str:
    """A text as it is, between as many backticks as it needs; unprintable characters are escaped."""
    shown = escape_unprintable(text.replace("\n", " ")).replace("|", "\\|")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def block(language: str, text: str) -> list[str]:
    """Lines of a fenced block, whatever the text holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}{language}", *map(escape_unprintable, text.split("\n")), fence, ""]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def yaml_text(text: str) -> str:
    """A text as a double-quoted YAML scalar, with JSON's escapes and one of eight digits."""
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08X}"
        for character in json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    )
