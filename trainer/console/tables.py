"""Tables on standard output."""

import os

from rich.console import Console, RenderableType

_ANY_WIDTH = 1000


def print_table(table: RenderableType) -> None:
    """Print in the width of the terminal; into a file or a pipe in full width, so that nothing is cut or wrapped.

    Args:
        table: Anything that rich can print.
    """
    console = Console(markup=False, emoji=False)  # text from files is printed unchanged
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _ANY_WIDTH
    console.print(table, crop=False)  # a title on a line of its own may be longer than a terminal is wide
