"""How a job shows its progress: a bar on a terminal, log lines elsewhere. Every command uses this."""

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
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

_LOG_SECONDS = 10.0


@cache
def _console() -> Console:
    return Console(stderr=True)


class Report(Protocol):
    """Tells how far a job is: `completed` of its total, and a note of what matters now."""

    def __call__(self, completed: int, note: str = "") -> None: ...


def set_up_logging(*, verbose: bool) -> None:
    """Send the logs to standard error; on a terminal they appear above the progress bar, without the time."""
    if _console().is_terminal:
        handler: logging.Handler = RichHandler(
            console=_console(), show_time=False, show_level=False, show_path=False, highlighter=NullHighlighter()
        )
        line_format = "%(message)s"
    else:
        handler = logging.StreamHandler(sys.stderr)
        line_format = "%(asctime)s %(message)s"
    handler.setFormatter(logging.Formatter(line_format, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])


@contextmanager
def progress(description: str, total: int, *, start: int = 0) -> Iterator[Report]:
    """Show the progress of a job while the context lasts.

    Args:
        description: What the job does.
        total: How much there is to do, in any unit.
        start: How much of it was done before.
    """
    if not _console().is_terminal:
        yield _log_lines(description, total, start)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console()) as bar:
        task = bar.add_task(description, total=total, completed=start, note="")

        def report(completed: int, note: str = "") -> None:
            bar.update(task, completed=completed, note=note)

        yield report


def _log_lines(description: str, total: int, start: int) -> Report:
    """A report that logs now and then, the last one always."""
    begin = time.monotonic()
    last = begin

    def report(completed: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _LOG_SECONDS and completed < total:
            return
        last = now
        left = (now - begin) / max(1, completed - start) * (total - completed)
        share = completed / total if total else 1.0
        logger.info("%s %.0f%%  %s  %s left", description, 100 * share, note, timedelta(seconds=round(left)))

    return report
