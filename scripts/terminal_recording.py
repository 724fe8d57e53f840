"""Run a command in a terminal of its own, and draw what it showed as an animated SVG.

python scripts/terminal_recording.py --output docs/images/make-up.svg --until "Stop with Ctrl-C" make up

Pauses are shortened, and all of it is sped up to fit --seconds; nothing else is changed. The last screen stays.
"""

import argparse
import fcntl
import math
import os
import pty
import select
import shutil
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import pyte
import pyte.screens

COLUMNS, ROWS = 110, 28
LONGEST_PAUSE = 0.6  # seconds
FRAME = 0.15  # seconds between two looks at the screen
REST = 0.5  # seconds from the text to Ctrl-C
CELL, LINE, MARGIN = 8, 19, 16  # pixels

COLORS = {
    "default": "#d5d9de", "black": "#79828c", "red": "#ff9a92", "green": "#5fce84", "brown": "#e2b04a",
    "blue": "#9db2ff", "magenta": "#d3a1f5", "cyan": "#6fd3e0", "white": "#ffffff",
}  # fmt: skip
STYLE = """
text { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
.past { visibility: hidden; }
@keyframes show { from, to { visibility: visible; } }
@keyframes hide { from, to { visibility: hidden; } }
@media (prefers-reduced-motion: reduce) { text { animation: none !important; } }
"""


class Run(NamedTuple):
    """Neighboring characters of one style."""

    column: int
    text: str
    color: str
    bold: bool


class Shown(NamedTuple):
    """What stood in a row of the screen for a while. `end` is None for what stays."""

    row: int
    runs: tuple[Run, ...]
    start: float
    end: float | None


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--until", required=True, help="press Ctrl-C once the command has written this")
    parser.add_argument("--seconds", type=float, default=25, help="the longest that the recording may play")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command or shutil.which(args.command[0]) is None:
        parser.error(f"no such command: {' '.join(args.command) or 'none was given'}")
    events, found = record(args.command, args.until.encode())
    if not found:
        print(f"the command ended and never wrote {args.until!r}", file=sys.stderr)
        return 1
    title = f"A terminal in which {' '.join(args.command)} runs"
    args.output.write_text(to_svg(replay(paced(events, args.seconds)), title), encoding="utf-8")
    return 0


def record(command: Sequence[str], until: bytes) -> tuple[list[tuple[float, bytes]], bool]:
    """Run a command in a pseudo-terminal.

    Returns:
        What it wrote, each with its time in seconds; and whether it wrote `until`, after which Ctrl-C was pressed.
    """
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores Ctrl-C, and so would the command
        os.execvpe(
            command[0], command, os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, events, tail = time.monotonic(), [(0.0, f"$ {' '.join(command)}\r\n".encode())], b""
    end = pressed = math.inf
    while True:
        now = time.monotonic() - began
        if end <= now < pressed:
            pressed = now
            os.write(terminal, b"\x03")
        if not select.select([terminal], [], [], REST)[0]:
            continue
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # how Linux reports that the last process has closed the terminal
            data = b""
        if not data:
            break
        if pressed == math.inf:
            events.append((time.monotonic() - began, data))
        tail = (tail + data)[-len(until) - len(data) :]
        if until in tail and end == math.inf:
            end = time.monotonic() - began + REST
    os.waitpid(process, 0)
    os.close(terminal)
    return events, end < math.inf


def paced(events: Sequence[tuple[float, bytes]], seconds: float) -> list[tuple[float, bytes]]:
    """The events at the times at which they are played, the first one second after the start."""
    times, now, last = [], 0.0, 0.0
    for at, _ in events:
        now += min(at - last, LONGEST_PAUSE)
        last = at
        times.append(now)
    speed = max(1.0, now / seconds)
    return [(1 + at / speed, data) for at, (_, data) in zip(times, events, strict=True)]


def replay(events: Sequence[tuple[float, bytes]]) -> list[Shown]:
    """What a terminal shows, row by row; looked at every `FRAME` seconds, and at the end."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    present: dict[int, Shown] = {}
    past = []

    def look(now: float) -> None:
        for row in range(ROWS):
            runs, before = runs_of(screen.buffer[row]), present.get(row)
            if before is not None and before.runs == runs:
                continue
            if before is not None:
                past.append(before._replace(end=now))
            present[row] = Shown(row, runs, now, None)

    looked = 0.0
    for at, data in events:
        if at - looked >= FRAME:
            look(at)
            looked = at
        stream.feed(data)
    look(events[-1][0] + FRAME)
    return [shown for shown in [*past, *present.values()] if shown.runs]


def runs_of(line: dict[int, pyte.screens.Char]) -> tuple[Run, ...]:
    """The characters of a row, by style, without blanks at the ends."""
    runs: list[Run] = []
    for column in range(COLUMNS):
        cell = line[column]
        if runs and (runs[-1].color, runs[-1].bold) == (cell.fg, cell.bold):
            runs[-1] = runs[-1]._replace(text=runs[-1].text + cell.data)
        else:
            runs.append(Run(column, cell.data, cell.fg, cell.bold))
    while runs and not runs[-1].text.strip():
        runs.pop()
    return tuple(run for run in runs if run.text.strip())


def to_svg(rows: Sequence[Shown], title: str) -> str:
    """The recording as an SVG that plays once; without animation it shows the last screen."""
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#14171b"/>',
            *map(text_of, rows),
            "</svg>\n",
        ]
    )


def text_of(shown: Shown) -> str:
    """A row for as long as it is seen."""
    spans = "".join(map(span_of, shown.runs))
    seen = (
        f'style="animation: hide {shown.start:.2f}s"'
        if shown.end is None
        else f'class="past" style="animation: show {shown.end - shown.start:.2f}s {shown.start:.2f}s"'
    )
    return f'<text y="{MARGIN + LINE * (shown.row + 1) - 5}" {seen}>{spans}</text>'


def span_of(run: Run) -> str:
    """Neighboring characters, as wide as their cells whatever the font."""
    text, weight = run.text.rstrip(), ' font-weight="bold"' if run.bold else ""
    place = f'x="{MARGIN + CELL * run.column}" textLength="{CELL * len(text)}" fill="{color_of(run)}"'
    return f"<tspan {place}{weight}>{escape(text)}</tspan>"


def color_of(run: Run) -> str:
    """A terminal's color on our background: named, or of the 256 as RRGGBB."""
    return COLORS.get(run.color.removeprefix("bright"), f"#{run.color}")


if __name__ == "__main__":
    sys.exit(main())
