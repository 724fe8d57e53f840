"""Tables on standard output."""

import os

from rich.console import Console, RenderableType

_ANY_WIDTH = 1000


def print_table(table: RenderableType) -> None:
    """Print for a person at a terminal; into a file or a pipe as wide as it is, so that nothing is cut or folded.

    Args:
        table: Anything that rich can print.
    """
    console = Console(markup=False, emoji=False)  # texts from files stay as they are
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _ANY_WIDTH
    console.print(table)
