"""Progress of a job: bars on a terminal, log lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Protocol

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from shared.system.errors import escape_unprintable

logger = logging.getLogger(__name__)

_LOG_SECONDS = 10.0


class Report(Protocol):
    """Reports how much of its total a job has `completed`, with an optional note."""

    def __call__(self, completed: int, note: str = "") -> None:
        """Report; cheap enough for every step."""


class NewBar(Protocol):
    """Adds a job to the display."""

    def __call__(self, description: str, total: int | None, start: int = 0) -> Report:
        """Show a job of `total` of any unit, None if it is unknown, of which `start` were done before."""


def set_up_logging(*, verbose: bool, errors_only: bool = False) -> None:
    """Send the logs to standard error; on a terminal they appear above the progress bars, without the time."""
    level = logging.ERROR if errors_only else logging.DEBUG if verbose else logging.INFO
    if _console().is_terminal:
        handler: logging.Handler = RichHandler(
            console=_console(), show_time=False, show_level=False, show_path=False, highlighter=NullHighlighter()
        )
        line_format = "%(message)s"
    else:
        handler = logging.StreamHandler(sys.stderr)
        line_format = "%(asctime)s %(message)s"
    handler.setFormatter(_Formatter(line_format, datefmt="%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    if not verbose:
        logging.getLogger("torch").setLevel(max(level, logging.WARNING))  # it logs its caches at the end


class _Formatter(logging.Formatter):
    """Escapes control characters, which names and contents of files may have."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_unprintable(super().format(record))


@contextmanager
def progress(*, shown: bool = True) -> Iterator[NewBar]:
    """Show the progress of the jobs that are added with the yielded function, while the context lasts.

    Args:
        shown: Whether to show bars where there is a terminal.
    """
    if not (shown and _console().is_terminal):
        yield _log_lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),  # with the note of `train` a line fits into 80 columns
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=_console()) as bars:

        def new_bar(description: str, total: int | None, start: int = 0) -> Report:
            task = bars.add_task(escape_unprintable(description), total=total, completed=start, note="")

            def report(completed: int, note: str = "") -> None:
                bars.update(task, completed=completed, note=note)

            return report

        yield new_bar


@cache
def _console() -> Console:
    return Console(stderr=True)


def _log_lines(description: str, total: int | None, start: int = 0) -> Report:  # noqa: ARG001
    """A report that logs every ten seconds, and once more at the end where it has a note."""
    first: int | None = None
    logged: int | None = None
    begin = last = 0.0

    def report(completed: int, note: str = "") -> None:
        nonlocal first, logged, begin, last
        now = time.monotonic()
        if first is None:  # jobs that are added together may run one after another
            first, begin, last = completed, now, now
        if now - last < _LOG_SECONDS and not (note and completed == total != logged):
            return
        logged, last = completed, now
        if total is None:
            parts = [f"{description} {completed:,}", note]
        else:
            left = timedelta(seconds=round((now - begin) / max(1, completed - first) * (total - completed)))
            parts = [f"{description} {completed / total if total else 1:.0%}", note, f"{left} left"]
        logger.info("  ".join(filter(None, parts)))

    return report
