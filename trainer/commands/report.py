"""`report`: a page about runs."""

import logging
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

logger = logging.getLogger(__name__)


def report(
    runs: list[Path],
    *,
    output: Path = Path("report.html"),
    figures: Path | None = None,
    figure_format: Literal["png", "svg"] = "png",
    prompt: str | None = None,
    curves_only: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
) -> None:
    """Compare runs on one page: curves, a table, samples, and the loss by position.

    The page is one file that needs no network; its figures are files too, for documents. Runs may still be training,
    stopped or failed.

    Args:
        runs: Run folders, sweep folders, or folders of runs; outputs of `vocab` and `encode`, to show their profiles.
        output: The HTML file.
        figures: Folder of the figures as files. Default: beside the page, with its name.
        figure_format: `png`, or `svg`: smaller where curves are few, and sharp at any size.
        prompt: Prompt of the samples. Default: each run's own.
        curves_only: Load no models: only the samples that the runs kept, and no loss by position. Takes a second.
        device: Where models run: `cpu`, `cuda`, or `auto`.
    """
    from trainer.errors import UsageError

    if output.is_dir():
        raise UsageError(f"--output {output} is a folder; give the name of an HTML file")
    if not output.suffix:
        output = output.with_suffix(".html")
    from trainer.report.build import build_report
    from trainer.report.figures import FigureFiles

    files = FigureFiles(figures or output.with_suffix(""), figure_format)
    build_report(runs, output, files=files, prompt=prompt, models=not curves_only, device=device)
    logger.info("%s, and its figures in %s", output, files.folder)
