"""What the parts report: one row a line, as JSON, so that a part that ends early leaves what it has found."""

import json
import sys
from dataclasses import asdict, dataclass

PREFIX = "ROW "


@dataclass(frozen=True)
class Row:
    """A result.

    Attributes:
        part: The part that found it.
        what: What was measured or checked.
        result: The value with its unit, or what was seen.
        met: Whether a check passed or a target was reached; None where there is none.
        value: The number, where there is one.
    """

    part: str
    what: str
    result: str
    met: bool | None = None
    value: float | None = None


def report(row: Row) -> None:
    """Print a row for the parent process."""
    print(PREFIX + json.dumps(asdict(row)), flush=True)


def parse(line: str) -> Row | None:
    """The row of a line; None where it is another line."""
    return Row(**json.loads(line[len(PREFIX) :])) if line.startswith(PREFIX) else None


def note(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)
