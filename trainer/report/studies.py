"""What the sweeps among the runs of a report found: the edge of stability, and variants beside their baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.runs.results import RunResults
from trainer.sweep.baseline import Compared, differences
from trainer.sweep.edge import Edge, find_edges, group_of
from trainer.sweep.record import read_notes
from trainer.sweep.studies import RATE

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class StudyFindings:
    """What is found in the runs of sweeps.

    Attributes:
        notes: What each sweep compares, and its edges of stability.
        marks: What a run is in its sweep, by its name.
        differences: Validation loss less the baseline's, by run's name; empty where no sweep has a baseline.
        edges: One for each group of runs that differ in learning rate.
    """

    notes: list[str] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


def read_findings(runs: Sequence[RunResults]) -> StudyFindings:
    """What the sweeps found to which the runs belong, each for itself."""
    sweeps: dict[Path, list[RunResults]] = {}
    for run in runs:
        sweeps.setdefault(run.folder.resolve().parent, []).append(run)
    found = StudyFindings()
    for folder, own in sweeps.items():
        edges = find_edges((run.changes, run.status) for run in own)
        notes = read_notes(folder) + [str(edge) for edge in edges.values()]
        found.notes.extend(f"{folder.name}: {note}" if len(sweeps) > 1 else note for note in notes)
        found.edges.extend(edges.values())
        for run in own:
            edge = edges.get(group_of(run.changes))
            if edge is not None and (mark := edge.mark(run.changes.get(RATE))):
                found.marks[run.name] = mark
        if any(run.baseline for run in own):
            losses = [None if run.status == "diverged" else run.final("validation_loss") for run in own]
            compared = (Compared(run.changes, run.baseline, loss) for run, loss in zip(own, losses, strict=True))
            found.differences.update(zip((run.name for run in own), differences(compared), strict=True))
    return found
