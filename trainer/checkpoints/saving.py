"""Writing a run's checkpoints and its finished model."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.lm import GenerationDefaults, ModelFolderError, Transformer, save_model_folder
from trainer.checkpoints.checkpoint import Checkpoint, save_checkpoint
from trainer.checkpoints.folders import (
    checkpoint_path,
    checkpoints_by_step,
    delete_old_checkpoints,
    is_intact,
    link_best,
    list_checkpoints,
    make_way,
    move_aside,
)
from trainer.checkpoints.resume import machine, result_settings
from trainer.checkpoints.run_state import RunState
from trainer.compute.device import Device
from trainer.compute.parallel import whole_model, whole_state
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.errors import DivergedError, TrainerError
from trainer.runs.folder import RunFolder
from trainer.settings.train import TrainSettings, to_table
from trainer.tokens.dataset import TrainingData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saver:
    """Writes what lasts of a run.

    Attributes:
        run: Where to.
        settings: The run's settings.
        data: What it trains on.
        generation: Defaults for generating, which model folders carry on.
        device: Where it computes.
        processes: Those that train, all of which call these methods at once; the first one writes.
    """

    run: RunFolder
    settings: TrainSettings
    data: TrainingData
    generation: GenerationDefaults
    device: Device
    processes: Processes = ONE_PROCESS

    def save_checkpoint(self, model: Transformer, optimizer: torch.optim.Optimizer, state: RunState) -> Path:
        """Write a checkpoint of this state, then delete those that are not to be kept.

        Raises:
            DivergedError: a weight is not a finite number; such a checkpoint would push out good ones.
            TrainerError: writing failed; names the newest checkpoint that there is.
        """
        model = whole_model(model)
        optimizer_state = whole_state(optimizer.state_dict(), keep=self.processes.is_first)
        self._check_finite(model, state)
        folder = self.run.checkpoints
        if not self.processes.is_first:
            return checkpoint_path(folder, state.step)
        make_way(checkpoint_path(folder, state.step))
        try:
            path = save_checkpoint(
                folder,
                run=state,
                model=model,
                optimizer=optimizer_state,
                tokenizer=self.data.tokenizer,
                generation=self.generation,
                provenance=self._provenance(state),
                settings=to_table(self.settings),
                data=self.data.identity(),
                machine=machine(self.settings, self.device, self.processes),
            )
        except ModelFolderError as error:
            raise TrainerError(f"{error}; {self.kept()}") from error
        logger.info("step %d: saved %s", state.step, path)
        self.mark_best(state)
        return path

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Make the run's folder what it was when a checkpoint was saved.

        Newer ones are damaged, else one of them had been taken. They are moved aside: the run comes to their steps
        again, and none of them is the last good one. So are older ones that are damaged, which would be kept in the
        place of good ones.
        """
        for step, path in checkpoints_by_step(self.run.checkpoints).items() if self.processes.is_first else ():
            if step > checkpoint.run.step or (step < checkpoint.run.step and not is_intact(path)):
                move_aside(path)
        self.mark_best(checkpoint.run)

    def _check_finite(self, model: Transformer, state: RunState) -> None:
        """Raise in all processes where a weight of any is not finite: one alone would leave the others waiting."""
        bad = next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None)
        if sum(self.processes.total([float(bad is not None)])):
            what = bad or "a weight of another process"
            raise DivergedError(f"after step {state.step} {what} holds numbers that are not finite", state.step)

    def mark_best(self, state: RunState) -> None:
        """Let the link to the best checkpoint follow the state, and delete checkpoints beyond those to keep."""
        if not self.processes.is_first:
            return
        folder = self.run.checkpoints
        best = None if state.best_step is None else checkpoint_path(folder, state.best_step)
        # It may be gone where a damaged checkpoint made the run go back behind a better one.
        link_best(folder, state.best_step if best is not None and best.exists() else None)
        keep, spare = self.settings.checkpoints.keep, [best] if best else []
        delete_old_checkpoints(folder, keep=keep, spare=spare)

    def save_model(self, model: Transformer, state: RunState) -> None:
        """Write the finished model's folder.

        Raises:
            TrainerError: writing failed; names the newest checkpoint, which holds the same model.
        """
        model = whole_model(model)
        if not self.processes.is_first:
            return
        make_way(self.run.model)
        try:
            save_model_folder(
                self.run.model,
                model=model,
                tokenizer=self.data.tokenizer,
                generation=self.generation,
                provenance=self._provenance(state),
                overwrite=True,
            )
        except ModelFolderError as error:
            raise TrainerError(f"{error}; {self.kept()}") from error
        logger.info("the model is in %s", self.run.model)

    def kept(self) -> str:
        """Which checkpoint there is to go on from, for messages."""
        newest = next(iter(list_checkpoints(self.run.checkpoints)), None)
        return f"the last good checkpoint is {newest}" if newest else "no checkpoint had been saved yet"

    def _provenance(self, state: RunState) -> dict[str, Any]:
        """How the model was trained, for its folder; without paths, which are meaningless elsewhere."""
        return {
            "steps": state.step,
            "tokens": state.step * self.settings.tokens_per_step,
            "validation_loss": state.validation_loss,
            "bits_per_byte": state.bits_per_byte,
            "data": self.data.identity(),
            "settings": result_settings(self.settings),
        }
