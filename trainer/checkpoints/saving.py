"""Writing a run's checkpoints and its finished model."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.lm import GenerationDefaults, ModelFolderError, Transformer, save_model_folder
from shared.lm.training_file import TRAINING_FILE
from trainer.card.model_card import write_model_card
from trainer.checkpoints.adapter import write_adapter
from trainer.checkpoints.checkpoint import Adapter, Checkpoint, save_checkpoint
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
from trainer.checkpoints.inherited import PARENT, Inherited
from trainer.checkpoints.resume import machine, result_settings
from trainer.checkpoints.run_state import RunState
from trainer.checkpoints.store import mirror
from trainer.checkpoints.training_file import training_file
from trainer.components.lora import adapter_weights, merged_model
from trainer.compute.device import Device
from trainer.compute.parallel import full_model, full_state
from trainer.compute.processes import ONE_PROCESS, Processes
from trainer.errors import DivergedError, TrainerError
from trainer.runs.folder import RunFolder
from trainer.runs.results import read_run
from trainer.settings.train import TrainSettings, to_table
from trainer.tokens.dataset import TrainingData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saver:
    """Writes checkpoints and the finished model.

    Attributes:
        run: Where to.
        settings: The run's settings.
        data: What it trains on.
        generation: Defaults for generating, saved in model folders.
        device: Where it computes.
        processes: Those that train; all of them call these methods, and the first one writes.
        inherited: What its folders take over from the model that the run started from, if there is one.
    """

    run: RunFolder
    settings: TrainSettings
    data: TrainingData
    generation: GenerationDefaults
    device: Device
    processes: Processes = ONE_PROCESS
    inherited: Inherited | None = None

    def save_checkpoint(self, model: Transformer, optimizer: torch.optim.Optimizer, state: RunState) -> Path:
        """Write a checkpoint of this state, then delete those beyond the ones to keep.

        Raises:
            DivergedError: a weight is NaN or infinite; such a checkpoint would replace good ones.
            TrainerError: writing failed; names the newest checkpoint.
        """
        adapter = self._adapter(model)
        model = merged_model(full_model(model))
        optimizer_state = full_state(optimizer.state_dict(), keep=self.processes.is_first)
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
                inherited=self.inherited,
                adapter=adapter,
                write_templates=self.data.write_templates,
            )
        except ModelFolderError as error:
            raise TrainerError(f"{error}; {self.kept()}") from error
        logger.info("step %d: saved %s", state.step, path)
        self.mark_best(state)
        mirror(self.settings, path, state.best_step)
        return path

    def return_to(self, checkpoint: Checkpoint) -> None:
        """Return the run's folder to its state when a checkpoint was saved.

        Newer checkpoints are damaged, or not on all machines: else one of them would have been loaded. They are moved
        aside, since the run will reach their steps again. Older damaged ones are moved aside too: they would count
        among those to keep.
        """
        for step, path in checkpoints_by_step(self.run.checkpoints).items() if self.processes.is_first_here else ():
            if step > checkpoint.run.step or (step < checkpoint.run.step and not is_intact(path)):
                with suppress(FileNotFoundError):  # where machines share the folder, another one has moved it
                    move_aside(path)
        self.mark_best(checkpoint.run)

    def _check_finite(self, model: Transformer, state: RunState) -> None:
        """Raise in all processes where a weight in any is NaN or infinite: raising in one would block the others."""
        bad = next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None)
        if sum(self.processes.all_reduce([float(bad is not None)])):
            what = bad or "in another process"
            raise DivergedError(f"NaN or infinite weight after step {state.step}: {what}", state.step)

    def mark_best(self, state: RunState) -> None:
        """Update the link to the best checkpoint, and delete checkpoints beyond those to keep."""
        if not self.processes.is_first:
            return
        folder = self.run.checkpoints
        best = None if state.best_step is None else checkpoint_path(folder, state.best_step)
        # It may be missing, where the run returned from a damaged checkpoint to one before the best.
        link_best(folder, state.best_step if best is not None and best.exists() else None)
        keep, spare = self.settings.checkpoints.keep, [best] if best else []
        delete_old_checkpoints(folder, keep=keep, spare=spare)

    def save_model(self, model: Transformer, state: RunState) -> None:
        """Write the finished model's folder.

        Raises:
            TrainerError: writing failed; names the newest checkpoint, which holds the same model.
        """
        adapter = self._adapter(model)
        model = merged_model(full_model(model))
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
                extra_files=lambda folder: self._add_files(folder, model, state),
                overwrite=True,
                dtype=None if self.inherited is None else self.inherited.dtype,
            )
        except ModelFolderError as error:
            raise TrainerError(f"{error}; {self.kept()}") from error
        logger.info("the model is in %s", self.run.model)
        if adapter is not None:
            self._save_adapter(adapter, state)

    def _adapter(self, model: Transformer) -> Adapter | None:
        weights = adapter_weights(model)
        if not weights or self.inherited is None:
            return None
        return Adapter(weights, dict(self.inherited.identity["weights_sha256"]))

    def _save_adapter(self, adapter: Adapter, state: RunState) -> None:
        """Write the adapter of the finished model.

        Raises:
            TrainerError: writing failed.
        """
        try:
            write_adapter(self.run.adapter, adapter.weights, self.settings, self._provenance(state))
        except OSError as error:
            raise TrainerError(f"{self.run.adapter}: writing the adapter failed ({error}); {self.kept()}") from error
        logger.info("the adapter is in %s", self.run.adapter)

    def kept(self) -> str:
        """Which checkpoint there is to resume from, for messages."""
        newest = next(iter(list_checkpoints(self.run.checkpoints)), None)
        return f"the last good checkpoint is {newest}" if newest else "no checkpoint was saved yet"

    def _add_files(self, folder: Path, model: Transformer, state: RunState) -> None:
        """The data's chat templates, what is taken over, the run's record, whose metrics are written, and the card."""
        self.data.write_templates(folder)
        if self.inherited is not None:
            self.inherited.write(folder)
        run = read_run(self.run.path)
        (folder / TRAINING_FILE).write_bytes(training_file(run, self.settings, self.data, state))
        write_model_card(folder, model.config, self.data.tokenizer, replaces=self.run.model)

    def _provenance(self, state: RunState) -> dict[str, Any]:
        """How the model was trained, for its folder; without paths, which are meaningless elsewhere."""
        return {
            "steps": state.step,
            "tokens": state.tokens,
            "validation_loss": state.validation_loss,
            "bits_per_byte": state.bits_per_byte,
            "data": self.data.identity(),
            "settings": result_settings(self.settings),
            **({} if self.inherited is None else {PARENT: dict(self.inherited.identity)}),
        }
