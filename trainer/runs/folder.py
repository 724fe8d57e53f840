"""The folder of a training run."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from shared.system.files import write_text
from shared.system.locks import lock
from trainer.errors import TrainerError
from trainer.runs.profile import PROFILE_FILE
from trainer.settings.train import TrainSettings, to_toml


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it writes."""

    path: Path

    @property
    def settings_file(self) -> Path:
        """The settings, as a file for `--config`."""
        return self.path / "train.toml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object for each logged step."""
        return self.path / "metrics.jsonl"

    @property
    def record_file(self) -> Path:
        """What the run was started with: settings, data, versions, machine."""
        return self.path / "run.json"

    @property
    def profile_file(self) -> Path:
        """Where time and memory went, of a start with `profile`."""
        return self.path / PROFILE_FILE

    @property
    def trace_file(self) -> Path:
        """A few steps as torch's profiler saw them, of a start with `profile`."""
        return self.path / "profile_trace.json.gz"

    def delete_profile(self) -> None:
        """Delete the profile of an earlier start."""
        for path in (self.profile_file, self.profile_file.with_suffix(".txt"), self.trace_file):
            path.unlink(missing_ok=True)

    @property
    def lock_file(self) -> Path:
        """Locked by the process that trains."""
        return self.path / ".lock"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The finished model's folder."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """The adapter of a finished run of LoRA, in PEFT's format."""
        return self.path / "adapter"

    def lock(self) -> None:
        """Lock the folder until this process ends, however it ends.

        Raises:
            TrainerError: another process holds the lock.
        """
        # Never closed: the lock belongs to the process, and ends with it.
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o666)
        if not lock(handle, holder="process"):
            raise TrainerError(f"another process trains into {self.path}; wait for it, or choose another --output")

    def write_settings(self, settings: TrainSettings) -> None:
        """Write the settings file, without those that belong to one start only."""
        checkpoints = replace(settings.checkpoints, resume=False, overwrite=False, stop_after=None)
        watch = replace(settings.watch, profile=False, watch=False)
        write_text(self.settings_file, to_toml(replace(settings, checkpoints=checkpoints, watch=watch)))
