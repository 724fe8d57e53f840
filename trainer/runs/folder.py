"""The folder of a training run."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from shared.system.files import write_text
from shared.system.folder_swap import remove
from shared.system.locks import lock
from trainer.checkpoints.folders import link_best, list_checkpoints
from trainer.errors import TrainerError, UsageError
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
        """What the run was made from and with."""
        return self.path / "run.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The finished model's folder."""
        return self.path / "model"

    def prepare(self, settings: TrainSettings) -> None:
        """Make the folder ready for a new run, or for one that goes on.

        Raises:
            UsageError: there is a run and the settings say neither resume nor overwrite, or there is none to resume.
            TrainerError: another process trains into the folder.
        """
        if settings.checkpoints.resume and not self.path.is_dir():
            raise UsageError(f"there is no run to resume in {self.path}: give another --output, or leave out --resume")
        self.path.mkdir(parents=True, exist_ok=True)
        _keep_others_out(self.path)
        holds_run = bool(list_checkpoints(self.checkpoints)) or self.model.exists()
        if holds_run and settings.checkpoints.overwrite:
            for path in list_checkpoints(self.checkpoints):
                remove(path)
            link_best(self.checkpoints, None)
            if (self.model / "ownlm.json").is_file():  # a folder named model that is no run's stays
                remove(self.model)
        elif holds_run and not settings.checkpoints.resume:
            raise UsageError(
                f"{self.path} holds a run already: go on with it (`--config {self.settings_file} --resume`), "
                "replace it (--overwrite), or choose another --output"
            )
        self.checkpoints.mkdir(exist_ok=True)  # now: a file in its place would be found hours later
        for unfinished in self.checkpoints.glob(".step-*.partial"):  # left by a process that was killed
            remove(unfinished)
        if not settings.checkpoints.resume:
            self.metrics_file.unlink(missing_ok=True)

    def write_settings(self, settings: TrainSettings) -> None:
        """Write the settings file, without how this start treats what is there, which is no part of the run."""
        checkpoints = replace(settings.checkpoints, resume=False, overwrite=False, stop_after=None)
        write_text(self.settings_file, to_toml(replace(settings, checkpoints=checkpoints)))


def _keep_others_out(folder: Path) -> None:
    """Lock a run's folder until this process ends, however it ends.

    Raises:
        TrainerError: another process holds the lock.
    """
    # Never closed: the lock is the process's, and ends with it.
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    if not lock(handle, holder="process"):
        raise TrainerError(f"another process trains into {folder}; wait for it, or take another --output")
