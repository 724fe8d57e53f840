"""`schedule`: the learning rates of a run, before it starts."""

from pathlib import Path

from trainer.errors import UsageError
from trainer.settings.plan import PlanSettings

_DEFAULTS = PlanSettings()


def schedule(*, settings: PlanSettings = _DEFAULTS, vocab_size: int | None = None, save: Path | None = None) -> None:
    """Show the learning rate of every step of a run, before it starts.

    It takes the options of `train`: `python -m trainer schedule --config runs/first/train.toml`, or
    `--max-steps 5000 --warmup-steps 250`. Steps are numbered as in metrics.jsonl: the first is 1.

    Args:
        settings: The run's.
        vocab_size: Size of the vocabulary, for a --depth or --preset whose steps depend on it, if there is no data yet.
        save: Also write the rates to this file: of every step for NAME.csv, drawn for NAME.svg or NAME.png.
    """
    if vocab_size is not None and vocab_size < 1:
        raise UsageError(f"--vocab-size must be at least 1; got {vocab_size}")
    from trainer.console.tables import print_table
    from trainer.report.schedule import check_file, save_rates, schedule_table

    if save is not None:
        check_file(save, settings.optimization.max_steps)
    print_table(schedule_table(settings))
    if save is not None:
        save_rates(settings, save)
