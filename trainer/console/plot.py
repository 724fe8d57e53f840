"""A curve as text: a bar of eighths of a character for each column."""

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], height: int) -> list[str]:
    """Draw values as vertical bars from 0 to the greatest.

    Args:
        values: Of each column, 0 or more. One above 0 has at least an eighth of a line.
        height: Lines.

    Returns:
        The lines, top first.
    """
    most = max(values, default=0.0)
    eighths = [max(round(8 * height * value / most), 1) if value > 0 else 0 for value in values]
    return ["".join(_EIGHTHS[min(8, max(0, n - 8 * line))] for n in eighths) for line in range(height - 1, -1, -1)]
