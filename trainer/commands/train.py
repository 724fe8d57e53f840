"""`train`: token files to a model."""

from shared.system.allocation import keep_freed_memory
from trainer.errors import InterruptedRunError
from trainer.settings.train import TrainSettings


def train(*, settings: TrainSettings) -> None:
    """Train a model on token files.

    A first run: `python -m trainer train --data tokens --output runs/first`. Look at the tokens a second that it
    reports and set --max-steps to the time you have. If the validation loss still falls at the end, more steps or a
    larger model will gain. If it rises while the training loss falls, the model learns its text by heart: give it more
    text, or take fewer steps or a smaller model. Ctrl-C saves a checkpoint, and `--config OUTPUT/train.toml --resume`
    goes on from it. Every checkpoint is a model folder that `generate` and the services open.
    """
    from trainer.training.trainer import train

    keep_freed_memory()
    try:
        train(settings)
    except InterruptedRunError as error:
        error.add_note(f"go on with: python -m trainer train --config {settings.output / 'train.toml'} --resume")
        raise
