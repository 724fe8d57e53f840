"""Builds a report: reads runs, runs their models, draws the figures and writes the page."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shared.system.files import write_text
from trainer.console.progress import progress
from trainer.report.comparison import varied_number
from trainer.report.description import Extras, curves_of, describe, title_of
from trainer.report.figures import FigureFiles, draw_all
from trainer.report.profiles import read_profiles
from trainer.report.selection import read_runs
from trainer.report.single_file import single_file
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
    notes = [f"{name}: {note}" for name, found in findings.items() for note in found.notes]
    positions = {name: found.positions for name, found in findings.items() if found.positions is not None}
    profiles = read_profiles(paths, runs, notes)
    try:
        pictures = draw_all(runs, positions, files, axis=varied_number(runs), edges=read_findings(runs).edges)
        extras = Extras(_samples(runs, findings, prompt), positions, pictures, profiles, notes)
        about = {
            "title": title_of([each.name for each in runs or profiles]),
            "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "figures": os.path.relpath(files.folder, output.parent),
        }
        looks = {run.name: number for number, run in enumerate(runs)}
        sections = {"about": about, **describe(runs, looks, extras)}
        points = {str(number): curves_of(run) for number, run in enumerate(runs)}
        write_text(output, single_file("index.html", {"sections": sections, "points": points}))
    except OSError as error:
        error.filename = error.filename or str(files.folder)  # matplotlib does not name the file
        raise


def _samples(
    runs: Sequence[RunResults], findings: "Mapping[str, ModelFindings]", prompt: str | None
) -> dict[str, list[tuple[int, str]]]:
    """Those that the runs kept, unless another prompt is asked for, and those drawn from their checkpoints."""
    samples = {run.name: list(run.samples) if prompt is None else [] for run in runs}
    for name, found in findings.items():
        samples[name] += found.samples
    return samples


def _run_models(runs: Sequence[RunResults], prompt: str | None, device: str) -> "dict[str, ModelFindings]":
    from trainer.report.models import examine

    found = {}
    with progress() as new_bar:
        report = new_bar("asking models", len(runs))
        for number, run in enumerate(runs, 1):
            found[run.name] = examine(run, prompt=prompt, device=device)
            report(number)
    return found
