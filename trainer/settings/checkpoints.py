"""Settings of what a run saves, and how it is resumed."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.fields import Settings, setting


@Parameter(name="*", group=Group("Checkpoints", sort_key=5))
@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Settings, affects="watching"):
    """What is saved, and how a run is resumed."""

    checkpoint_interval: int = setting(500, minimum=0)
    """Steps between two checkpoints; 0 saves at the end (and on Ctrl-C) only. Each takes about 12 bytes a parameter."""

    keep: int = setting(2, minimum=0)
    """How many of the newest checkpoints stay on disk; 0 keeps all."""

    keep_best: bool = False
    """Save a checkpoint also whenever an evaluation gives a lower validation loss than all before, and keep the best
    one whatever its age: checkpoints/best links to it. For small texts that a model may overfit."""

    resume: bool = False
    """Resume from the newest intact checkpoint of this output folder, with exactly the result of an uninterrupted run.
    The run's own settings are in its train.toml: `--config OUTPUT/train.toml --resume`."""

    auto_resume: bool = False
    """Resume where there is a checkpoint, else start: for jobs that a scheduler or torchrun's --max-restarts starts
    again."""

    checkpoint_store: str | None = None
    """Also copy each checkpoint to this folder of an object store, such as s3://bucket/runs/first, and resume from its
    newest one: for machines that share no disk. As many are kept as on disk. A new run needs a folder without any."""

    overwrite: bool = False
    """Start again in an output folder that holds a run; its checkpoints are deleted, also those in the store."""

    stop_after: int | None = setting(None, minimum=1)
    """End after this step with a checkpoint, which --resume continues from: a trial of a long run, with the learning
    rates of the full length (--max-steps)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.resume or self.auto_resume) and self.overwrite:
            raise UsageError(
                "--resume and --auto-resume continue the run in the output folder, --overwrite deletes it: give one of "
                "them"
            )
