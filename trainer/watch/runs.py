"""Runs that are watched: what is new in their folders, as messages for the page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from trainer.report.description import describe, describe_now, title_of, to_json
from trainer.report.points import SHOWN, Sent, new_points
from trainer.report.selection import folders_of_runs, in_sweeps, run_names
from trainer.runs.results import RunReader

_REST = 3_000
"""The sections are described again after this many times the time that it took, unless more than a figure changed."""

_LATEST = 2_000  # values of each curve that the figures of now are taken from


class WatchedRun:
    """One run: its folder, as far as it was read, and what the page has of its curves.

    Attributes:
        folder: The run's.
        number: Of its look, and its name among the points; the same as long as it is watched.
        reader: Reads the folder.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.reader = RunReader(folder)
        self._sent: dict[str, Sent] = {}

    @property
    def occurrences(self) -> tuple[object, ...]:
        """What is worth describing at once when it changes."""
        metrics = self.reader.metrics
        return self.reader.standing, len(metrics.samples), len(metrics.events), len(metrics.columns)

    def points(self) -> dict[str, Any]:
        """All points."""
        columns = self.reader.metrics.columns
        all_points = {key: new_points(columns[key], Sent())[0] for key in SHOWN if key in columns}
        return {key: points for key, points in all_points.items() if points is not None}

    def new_points(self) -> dict[str, Any]:
        """Those since the last call, in place of some of the earlier ones where the run returned to a checkpoint."""
        columns, found = self.reader.metrics.columns, {}
        for key in SHOWN:
            if key in columns:
                points, self._sent[key] = new_points(columns[key], self._sent.get(key, Sent()))
                columns[key].num_unchanged = len(columns[key])
            else:
                points = {"from": 0, "steps": [], "values": []} if self._sent.pop(key, None) else None
            if points is not None:
                found[key] = points
        return found


class WatchedRuns:
    """The runs in some folders, which need not be there yet. Not for several threads at once.

    Args:
        paths: Run folders, or folders of them; kept as an attribute.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._runs: dict[Path, WatchedRun] = {}
        self._numbers: dict[Path, int] = {}
        self._names: dict[Path, str] = {}
        self._waiting: list[str] = []
        self._sections: dict[str, bytes] = {}
        self._occurrences: object = None
        self._described, self._cost = -float("inf"), 0.0
        self._is_stale = True

    def whole(self) -> bytes:
        """All that the page shows, as of the last update."""
        points = {str(run.number): run.points() for run in self._runs.values()}
        return _message(self._sections, points, isWhole=True)

    def update(self) -> bytes | None:
        """Read what is new in the folders; None where nothing changed."""
        self._find()
        for run in self._runs.values():
            self._is_stale |= run.reader.update()
        sections = self._new_sections()
        points = {str(run.number): new for run in self._runs.values() if (new := run.new_points())}
        return _message(sections, points) if sections or points else None

    def _find(self) -> None:
        found = {path: folders_of_runs(path) for path in self.paths}
        self._waiting = [str(path) for path, inside in found.items() if not inside]
        folders = {folder.resolve(): folder for inside in found.values() for folder in inside}
        if list(folders) == list(self._runs):
            return
        for whole in folders:
            self._numbers.setdefault(whole, len(self._numbers))
        # One that is back is read and sent anew: pages that were opened meanwhile have nothing of it.
        self._runs = {
            whole: self._runs.get(whole) or WatchedRun(folder, self._numbers[whole])
            for whole, folder in folders.items()
        }
        self._names = run_names([run.folder for run in self._runs.values()])

    def _new_sections(self) -> dict[str, bytes]:
        """Those that changed since the last call; where only figures of long runs did, since a while ago."""
        occurrences = [self._waiting, *((run.number, run.occurrences) for run in self._runs.values())]
        now = time.monotonic()
        if self._sections and occurrences == self._occurrences:
            if not self._is_stale:
                return {}
            if now - self._described < _REST * self._cost:
                return self._changed({"now": self._describe_now()})
        begin = time.thread_time()
        changed = self._changed(self._describe())
        self._occurrences, self._is_stale = occurrences, False
        self._described, self._cost = now, time.thread_time() - begin
        return changed

    def _changed(self, sections: dict[str, Any]) -> dict[str, bytes]:
        json = {name: to_json(content) for name, content in sections.items()}
        changed = {name: content for name, content in json.items() if self._sections.get(name) != content}
        self._sections |= changed
        return changed

    @property
    def _looks(self) -> dict[str, int]:
        return {self._names[run.folder]: run.number for run in self._runs.values()}

    def _describe_now(self) -> Any:
        runs = (run.reader.results(self._names[run.folder], latest=_LATEST) for run in self._runs.values())
        return describe_now(list(runs), self._looks)

    def _describe(self) -> dict[str, Any]:
        runs = in_sweeps([run.reader.results(self._names[run.folder]) for run in self._runs.values()])
        about = {"title": title_of([run.name for run in runs])}
        return {"about": about, "waiting": self._waiting, **describe(runs, self._looks)}


def _message(sections: dict[str, bytes], points: dict[str, Any], **more: bool) -> bytes:
    fragments = {name: orjson.Fragment(json) for name, json in sections.items()}
    return orjson.dumps({**more, "sections": fragments, "points": points})
