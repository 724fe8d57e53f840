"""`sweep`: several training runs, one after another."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.train import TrainSettings

logger = logging.getLogger(__name__)


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class SweepSettings(TrainSettings):
    """What all runs have in common."""

    data: Annotated[Path, Parameter(show_default=False)] = Path()
    """Folder that `encode` wrote; not needed where vocab_size varies."""

    output: Path
    """Folder of the sweep: a run folder for each run, and sweep.json."""


def sweep(
    experiment: Literal["learning-rate", "batch-size", "vocab-size"] | None = None,
    *,
    settings: SweepSettings,
    grid: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    zip_: Annotated[tuple[str, ...], Parameter(name="--zip", negative=())] = (),
    hold_tokens: Annotated[bool, Parameter(negative="")] = False,
    text: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    validation_text: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
) -> None:
    """Train several times with different settings, and rank them.

    Begin short: `python -m trainer sweep learning-rate --data tokens --output sweeps/rate --max-steps 500`. It shows
    which two or three values deserve a long run. All options of `train` apply to every run. A run that fails or
    diverges is recorded with the reason, and the sweep continues. Ctrl-C stops after saving; the same command resumes,
    skips finished runs, and adds new ones. `python -m trainer report OUTPUT` draws the curves.

    Args:
        experiment: A classic one. `learning-rate`: from a tenth of --learning-rate to a rate that diverges.
            `batch-size`: a quarter to four times the batch, on equally many tokens. `vocab-size`: 1,024 to 16,384,
            trained on --text; compare bits per byte, since losses of different vocabularies do not compare. --grid
            replaces the values.
        settings: What all runs have in common.
        grid: NAME=VALUE,VALUE,… for any option of `train`, or vocab_size; given several times, every combination is
            run. In a file: a table [grid] of lists.
        zip_: The same, but all given with --zip vary together, first with first: `--zip d_model=128,256 --zip
            num_layers=2,4` is two runs. Values may repeat where the rows differ.
        hold_tokens: Give every run as many tokens as the common settings have: fewer steps where a batch is larger, and
            warm-up and intervals in proportion.
        text: Where vocab_size varies: text to learn vocabularies from, and to train on; files or folders.
        validation_text: Text to evaluate on. If not given, a twentieth of the documents of --text.
    """
    from trainer.console.tables import print_table
    from trainer.sweep.plan import combine, parse_axes, plan_runs
    from trainer.sweep.record import summary_table
    from trainer.sweep.runner import Sweep
    from trainer.sweep.vocabularies import Text

    if settings.checkpoints.stop_after is not None:
        raise UsageError("stop_after is an option of `train` only: a sweep compares finished runs")
    changes = combine(experiment, parse_axes(grid, option="--grid"), parse_axes(zip_, option="--zip"), settings)
    runs = plan_runs(settings, changes, hold_tokens=hold_tokens or experiment == "batch-size")
    work = Sweep(settings.output, runs, Text(text, validation_text), overwrite=settings.checkpoints.overwrite)
    try:
        outcomes = work.run()
    except InterruptedRunError as error:
        error.add_note("resume with the same command")
        raise
    print_table(summary_table(outcomes))
    for outcome in outcomes:
        if outcome.reason:
            logger.info("%s %s: %s", outcome.name, outcome.status, outcome.reason)
    logger.info("curves: python -m trainer report %s", settings.output)
