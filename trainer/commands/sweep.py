"""`sweep`: several training runs, one after another."""

import dataclasses
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from trainer.errors import InterruptedRunError, UsageError
from trainer.settings.fields import Settings, setting
from trainer.settings.train import TrainSettings
from trainer.sweep.studies import STUDIES, Hold, RateScaling, Study, StudyName
from trainer.watch.child import page_about

logger = logging.getLogger(__name__)


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class SweepSettings(TrainSettings):
    """What all runs have in common."""

    data: Annotated[Path, Parameter(show_default=False)] = Path()
    """Folder that `encode` wrote; not needed where vocab_size varies."""

    output: Path
    """Folder of the sweep: a run folder for each run, and sweep.json."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VariationSettings(Settings):
    """What varies, and what does not."""

    grid: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """NAME=VALUE,VALUE,… for any option of `train`, or vocab_size; given several times, every combination is run. In a
    file: a table [grid] of lists."""

    zip_: Annotated[tuple[str, ...], Parameter(name="--zip", negative=())] = ()
    """The same, but all given with --zip vary together, first with first: `--zip d_model=128,256 --zip num_layers=2,4`
    is two runs. Values may repeat where the rows differ."""

    hold: Hold | None = None
    """What every run has as many of as the common settings. steps: larger batches see more text, and gain from it.
    tokens: larger batches take fewer steps, warm-up and intervals in proportion, and usually lose by it. Default:
    steps, and tokens for batch-size."""

    rate_scaling: RateScaling = "none"
    """How the learning rate follows the batch, from the common settings: not at all; sqrt: by the square root of the
    ratio, as suits AdamW (Malladi et al. 2022, arXiv 2205.10287); linear: by the ratio, as suits SGD (Goyal et al.
    2017, arXiv 1706.02677)."""

    refine: int = setting(0, minimum=0, maximum=100)
    """Further runs where learning_rate varies, after the others, to narrow the edge of stability: each halves, by
    ratio, the interval between the largest stable rate and the smallest that diverges. Where all rates are stable, or
    all diverge, the next one is ten times as high, or a tenth."""

    text: Annotated[tuple[Path, ...], Parameter(negative=())] = ()
    """Where vocab_size varies: text to learn vocabularies from, and to train on; files or folders."""

    validation_text: Annotated[tuple[Path, ...], Parameter(negative=())] = ()
    """Text to evaluate on. If not given, a twentieth of the documents of --text."""


def sweep(
    experiment: StudyName | None = None,
    *,
    settings: SweepSettings,
    variation: VariationSettings = VariationSettings(),
) -> None:
    """Train several times with different settings, and rank them.

    Begin short: `python -m trainer sweep learning-rate --data tokens --output sweeps/rate --max-steps 500`. It shows
    which two or three values deserve a long run. All options of `train` apply to every run. A run that fails or
    diverges is recorded with the reason, and the sweep continues. Ctrl-C stops after saving; the same command resumes,
    skips finished runs, and adds new ones. `python -m trainer report OUTPUT` draws the curves.

    Args:
        experiment: A classic one. `learning-rate`: from a tenth of --learning-rate to a rate that diverges, and the
            edge of stability. `batch-size`: a quarter to four times the batch, on equally many tokens, or steps
            (--hold). `vocab-size`: 1,024 to 16,384, trained on --text; compare bits per byte, since losses of
            different vocabularies do not compare. `ablations`: a baseline, and beside it post-norm, no norm, no
            position encoding, and SiLU without a gate at equal parameters, all without query/key norm and mimetic
            initialization unless asked. --grid replaces the values, or adds other axes such as seed=1,2,3.
        settings: What all runs have in common.
        variation: What varies.
    """
    from trainer.console.tables import print_table
    from trainer.sweep.axes import parse_axes
    from trainer.sweep.edge import find_edges
    from trainer.sweep.plan import Design, combine, plan_runs
    from trainer.sweep.record import summary_table
    from trainer.sweep.runner import Sweep
    from trainer.sweep.vocabularies import Text

    if settings.checkpoints.stop_after is not None:
        raise UsageError("--stop-after is an option of `train` only: a sweep compares finished runs")
    page = page_about(settings.output) if settings.watch.watch else nullcontext()
    settings = dataclasses.replace(settings, watch=dataclasses.replace(settings.watch, watch=False))  # one for all runs
    study = STUDIES[experiment] if experiment else Study()
    axes, zipped = parse_axes(variation.grid, option="--grid"), parse_axes(variation.zip_, option="--zip")
    changes = combine(study, axes, zipped, settings)
    design = Design(settings, study, variation.hold or study.hold, variation.rate_scaling, variation.refine)
    work = Sweep(design, plan_runs(design, changes), Text(variation.text, variation.validation_text))
    for note in work.notes:
        logger.info(note)
    try:
        with page:
            outcomes = work.run()
    except InterruptedRunError as error:
        error.add_note("resume with the same command")
        raise
    print_table(summary_table(outcomes))
    for outcome in outcomes:
        if outcome.reason:
            logger.info("%s %s: %s", outcome.name, outcome.status, outcome.reason)
    for edge in find_edges((outcome.changes, outcome.status) for outcome in outcomes).values():
        logger.info(edge)
    logger.info("curves: python -m trainer report %s", settings.output)
