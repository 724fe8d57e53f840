"""Builds a report: reads runs, runs their models, draws the figures and writes the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.console.progress import progress
from trainer.report.figures import FigureFiles, draw_all
from trainer.report.page import varied_number, write_page
from trainer.report.profiles import read_profiles
from trainer.report.selection import read_runs
from trainer.report.studies import read_findings
from trainer.runs.results import RunResults

if TYPE_CHECKING:
    from trainer.report.models import ModelFindings  # imports torch


def build_report(
    paths: Sequence[Path], output: Path, *, files: FigureFiles, prompt: str | None, models: bool, device: str
) -> None:
    """Write a page about runs.

    Args:
        paths: Run folders, or folders of them; and outputs of `vocab` and `encode` with their profiles.
        output: The HTML file.
        files: Where the figures go that are files too.
        prompt: The prompt of the samples; None uses each run's own.
        models: Whether to load models, for samples and the loss by position.
        device: Where they run.

    Raises:
        UsageError: there is no run.
    """
    runs = read_runs(paths)
    findings = _run_models(runs, prompt, device) if models else {}
    samples = {run.name: list(run.samples) if prompt is None else [] for run in runs}
    for name, found in findings.items():
        samples[name] += found.samples
    positions = {name: found.positions for name, found in findings.items() if found.positions is not None}
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    notes += [f"{name}: {note}" for name, found in findings.items() for note in found.notes]
    profiles, studies = read_profiles(paths, runs, notes), read_findings(runs)
    try:
        pictures = draw_all(runs, positions, files, axis=varied_number(runs), edges=studies.edges)
        write_page(
            output,
            runs,
            pictures=pictures,
            samples=samples,
            profiles=profiles,
            notes=notes,
            studies=studies,
            figure_folder=files.folder,
        )
    except OSError as error:
        error.filename = error.filename or str(files.folder)  # matplotlib does not name the file
        raise


def _run_models(runs: Sequence[RunResults], prompt: str | None, device: str) -> "dict[str, ModelFindings]":
    from trainer.report.models import examine

    found = {}
    with progress() as new_bar:
        report = new_bar("asking models", len(runs))
        for number, run in enumerate(runs, 1):
            found[run.name] = examine(run, prompt=prompt, device=device)
            report(number)
    return found
