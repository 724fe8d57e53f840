"""`train`: token files to a model."""

import os
from contextlib import nullcontext

from shared.system.allocation import keep_freed_memory
from trainer.console.program import PROGRAM
from trainer.errors import InterruptedRunError, TrainerError
from trainer.settings.train import TrainSettings
from trainer.watch.child import page_about


def train(*, settings: TrainSettings) -> None:
    """Train a model on token files.

    A first run: `python -m trainer train --data tokens --output runs/first`. Look at the tokens per second that it
    reports and set --max-steps to fit the time you have. If the validation loss still falls at the end, more steps or a
    larger model will help. If it rises while the training loss falls, the model is overfitting: use more text, fewer
    steps or a smaller model. Ctrl-C saves a checkpoint, and `--config OUTPUT/train.toml --resume` resumes from it.
    Every checkpoint is a model folder that `generate` and the services open.
    """
    if settings.watch.profile:  # else torch's profiler writes lines of its own to the terminal; torch reads this once
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with page_about(settings.output) if settings.watch.watch else nullcontext():
        _train(settings)


def _train(settings: TrainSettings) -> None:
    from torch import OutOfMemoryError

    from trainer.training.trainer import train

    keep_freed_memory()
    try:
        train(settings)
    except OutOfMemoryError as error:
        raise TrainerError(
            f"a GPU's memory is used up; the same batch takes less with a lower --batch-size and --total-batch-size "
            f"{settings.total_batch_size}; checkpoints saved so far stay ({str(error).partition('. ')[0]})"
        ) from error
    except InterruptedRunError as error:
        error.add_note(f"resume with: {PROGRAM} train --config {settings.output / 'train.toml'} --resume")
        raise
