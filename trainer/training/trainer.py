"""The training of a run, from its first step to the finished model folder."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.system.errors import describe
from shared.system.stages import Stage, no_stage, staged
from trainer.checkpoints.checkpoint import Checkpoint, load_newest_checkpoint, restore_random_state
from trainer.checkpoints.folders import checkpoint_path
from trainer.checkpoints.run_state import RunState
from trainer.checkpoints.saving import Saver
from trainer.checkpoints.store import fetch_newest
from trainer.components.lora import load_adapter
from trainer.components.loss import TrainingLoss
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device
from trainer.compute.parallel import load_weights, parallel_loss, shard, shard_state
from trainer.compute.processes import Processes, join_processes
from trainer.console.progress import NewBar, Report, progress
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import DivergedError, InterruptedRunError, TrainerError
from trainer.runs.metrics import MetricsFile
from trainer.runs.record import End, record_end, record_start
from trainer.runs.trackers import trackers
from trainer.settings.train import TrainSettings, to_table
from trainer.tokens.token_file import TokenFileError
from trainer.training.forecast import Forecast
from trainer.training.loop import Step, training_steps
from trainer.training.profiling import STEP, TrainingProfile
from trainer.training.run import Run, log_plan, prepare_run

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a run's model.

    Attributes:
        run: What is trained; without the checkpoint it was resumed from, once that is restored.
        state: How far it has come.
        saved_step: The step of the newest checkpoint of this start, while the run is as in it.
    """

    def __init__(self, run: Run, profile: TrainingProfile | None = None) -> None:
        """Move the model to its device, divide it among the processes, and build loss and optimizer."""
        self.profile = profile
        self.stage: Stage = no_stage if profile is None else profile.stage
        self.run, self.settings, self.processes = run, run.settings, run.processes
        o, device = run.settings.optimization, run.device.torch_device
        self.model = run.model.to(device).train()
        loss = TrainingLoss(self.model)
        shard(loss, run.processes, run.settings.machine.parallel, device)
        rates = run.settings.experiments
        self.optimizer = build_optimizer(
            self.model,
            name=o.optimizer,
            learning_rate=o.learning_rate,
            betas=o.betas,
            weight_decay=o.weight_decay,
            momentum=o.momentum,
            embedding_learning_rate=rates.embedding_learning_rate,
            head_learning_rate=rates.head_learning_rate,
        )
        self.loss_function = parallel_loss(loss, run.settings, run.processes, device)
        self.saver = Saver(
            run.folder, run.settings, run.data, run.watcher.generation, run.device, run.processes, run.inherited
        )
        self.metrics = MetricsFile(run.folder.metrics_file) if run.processes.is_first else None
        self.state = RunState()
        self.saved_step: int | None = None
        self.started = time.perf_counter()
        self.unlogged: list[Step] = []
        self.last_step = run.settings.checkpoints.stop_after or o.max_steps
        self.forecast = Forecast(self.last_step, run.settings.shapes)

    def train(self) -> Path:
        """Train from the run's checkpoint, or from the first step, to the last.

        Returns:
            The finished model's folder; the checkpoint, where `stop_after` ended it before.

        Raises:
            InterruptedRunError: SIGINT, SIGTERM or SIGHUP came; a checkpoint was saved.
            DivergedError: the loss or the gradient diverged, and the settings offer no further remedy; checkpoints
                stay.
            TrainerError: a file cannot be written, or the token files were changed; the message names the last good
                checkpoint.
        """
        self._start()
        with self._recording_the_end():
            return self._train()

    def _train(self) -> Path:
        followed = nullcontext() if self.metrics is None else trackers(self.metrics, self.run.folder, self.settings)
        steps = self.last_step - self.state.step
        profiled = nullcontext() if self.profile is None else self.profile.running(self.run, steps)
        with followed, profiled:
            log_plan(self.run)
            if self.settings.divergence.on_divergence == "rollback" and self.state.step == 0:
                self._save_checkpoint()  # so that there is always a checkpoint to return to
            with stop_on_signals() as stop, progress(shown=self.processes.is_first) as new_bar:
                if self.state.step == 0 and self.run.inherited is not None and self.settings.watch.eval_interval:
                    self._evaluate_start()
                while not self._reach_the_end(new_bar, stop):
                    pass
            if self._is_done:
                with self.stage("save model"):
                    self.saver.save_model(self.model, self.state)
                return self.run.folder.model
        path = checkpoint_path(self.run.folder.checkpoints, self.state.step)
        logger.info("stopped after step %d (--stop-after); --resume continues from %s", self.state.step, path)
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to where the run was when a checkpoint was saved."""
        if checkpoint.adapter is None:
            load_weights(self.model, checkpoint.model.state_dict())
        else:
            load_adapter(self.model, checkpoint.adapter.weights)
        self.optimizer.load_state_dict(checkpoint.optimizer)  # moves the state to the parameters' device
        shard_state(self.optimizer)
        if checkpoint.random is not None:
            restore_random_state(checkpoint.random)
        self.state, self.saved_step = checkpoint.run, None
        self.saver.return_to(checkpoint)

    def _start(self) -> None:
        """Restore the checkpoint of a resumed run, and record what the run is started with."""
        checkpoint = self.run.checkpoint
        if checkpoint is not None:
            self.restore(checkpoint)
            logger.info("resumed from %s", checkpoint.path)
            self.run = replace(self.run, checkpoint=None)  # frees its tensors
        if self.metrics is not None:
            self.run.folder.write_settings(self.settings)
            record_start(
                self.run.folder.record_file,
                settings=to_table(self.settings),
                data=self.run.data.identity(),
                parameters=self.model.config.num_parameters,
                trained_parameters=self.run.trained_parameters,
                tokens=self.settings.shapes.tokens(self.settings.optimization.max_steps),
                step=self.state.step,
                device=str(self.run.device),
                processes=self.processes.count,
                resumed=checkpoint is not None,
            )
            self.metrics.rewind(self.state.step)
        self.started = time.perf_counter() - self.state.seconds

    @contextmanager
    def _recording_the_end(self) -> Iterator[None]:
        """Record in `run.json` how this start ends; a kill leaves no record."""
        how: End = "failed"
        reason = None
        try:
            yield
            how = "finished" if self._is_done else "stopped"
        except InterruptedRunError as error:
            how, reason = "stopped", signal.Signals(error.signal_number).name
            raise
        except DivergedError as error:
            how, reason = "diverged", str(error)
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, TrainerError) else describe(error)
            raise
        finally:
            if self.metrics is not None:
                with suppress(OSError):  # as on a full disk, of which the error in flight speaks
                    record_end(self.run.folder.record_file, step=self.state.step, how=how, reason=reason)

    @property
    def _is_done(self) -> bool:
        return self.state.step >= self.settings.optimization.max_steps

    def _reach_the_end(self, new_bar: NewBar, stop: StopRequest) -> bool:
        """Take the remaining steps and save the last; false where the run returned to a checkpoint instead."""
        report = new_bar("training", self.settings.optimization.max_steps, start=self.state.step)
        try:
            steps = training_steps(
                self.model,
                self.optimizer,
                self.run.windows,
                self.settings,
                self.run.device,
                state=self.state,
                loss_function=self.loss_function,
                processes=self.processes,
                stop=stop,
                stage=self.stage,
            )
            for step in staged(steps, self.stage, STEP):
                self._after(step, report)
                # One process may act on a later signal too; several must stop at the same step.
                signal_number = stop.signal_number if self.processes.count == 1 else step.stop_signal
                if signal_number is not None:
                    raise self._interrupted(signal_number)
                if step.number == self.last_step:
                    break
            if self._is_done and self.state.evaluated_step != self.state.step:
                self._evaluate()
            self._save_checkpoint()
        except DivergedError as error:
            self._recover(error)
            return False
        except TokenFileError as error:
            if self.processes.count == 1:  # others may be within a step, and saving needs all of them
                self._save_checkpoint()
            raise TrainerError(f"{error}; {self.saver.kept()}; restore the file and continue with --resume") from error
        return True

    def _after(self, step: Step, report: Report) -> None:
        """Do what is due after a step: metrics, evaluation, sample, checkpoint."""
        watch, last = self.settings.watch, self._is_done
        self.unlogged.append(step)
        self.forecast.add(step)
        tokens_per_second = sum(each.tokens for each in self.unlogged) / sum(each.seconds for each in self.unlogged)
        with self.stage("logging"):
            report(
                step.number,
                f"loss {step.loss:.3f} lr {step.learning_rate:.1e} norm {step.grad_norm:.2f} "
                f"{tokens_per_second:,.0f} tok/s",
            )
        if step.fault is not None:
            logger.warning("step %d: %s; skipping this update", step.number, step.fault)
            self._record(event=f"skipped: {step.fault}")
        if step.number == 1 or step.number % watch.log_interval == 0 or last:
            self._record(
                loss=step.loss,
                learning_rate=step.learning_rate,
                grad_norm=step.grad_norm,
                tokens_per_second=round(tokens_per_second, 1),
            )
            self.unlogged.clear()
        if last:
            return
        is_best = _is_due(step.number, watch.eval_interval) and self._evaluate()
        if _is_due(step.number, watch.sample_interval):
            with self.stage("samples"):
                text = self.run.watcher.sample()
            if text is not None:
                logger.info("step %d: %s", step.number, text)
                self._record(sample=text)
        if is_best or _is_due(step.number, self.settings.checkpoints.checkpoint_interval):
            self._save_checkpoint()

    def _evaluate_start(self) -> None:
        """Score the model that the run starts from; it may stay the best."""
        if self._evaluate():
            self._save_checkpoint()

    def _evaluate(self) -> bool:
        """Score the validation tokens, if there are any; true if a checkpoint should be saved as the best."""
        with self.stage("evaluation"):
            evaluation = self.run.watcher.evaluate()
        if evaluation is None:
            return False
        state, loss, bits = self.state, evaluation.loss, evaluation.bits_per_byte
        state.evaluated_step, state.validation_loss, state.bits_per_byte = state.step, loss, bits
        in_bits = "" if bits is None else f", {bits:.4f} bits per byte"
        logger.info("step %d: validation loss %.4f%s", state.step, loss, in_bits)
        self._record(validation_loss=loss, bits_per_byte=bits)
        is_better = math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss)
        is_best = self.settings.checkpoints.keep_best and is_better
        if is_best:
            state.best_step, state.best_loss = state.step, loss
        return is_best

    def _record(self, **values: Any) -> None:
        """Write one record of the present step.

        Raises:
            TrainerError: it cannot be written; names the last good checkpoint.
        """
        if self.metrics is None:
            return
        self.state.seconds = time.perf_counter() - self.started
        state = self.state
        if self.run.data.train.manifest.has_mask:
            values["counted_tokens"] = state.counted_tokens
        try:
            with self.stage("logging"):
                self.metrics.write(step=state.step, tokens=state.tokens, seconds=round(state.seconds, 3), **values)
        except TrainerError as error:
            raise TrainerError(f"{error}; {self.saver.kept()}") from error

    def _save_checkpoint(self) -> None:
        """Write a checkpoint of this step unless there is one, and flush the metrics to the disk."""
        if self.saved_step == self.state.step:
            return
        self.state.seconds = time.perf_counter() - self.started
        with self.stage("checkpoints"):
            if self.metrics is not None:
                self.metrics.sync()
            self.saver.save_checkpoint(self.model, self.optimizer, self.state)
            self.processes.barrier()  # the first process writes and copies it, perhaps for longer than a step may take
        self.saved_step = self.state.step

    def _interrupted(self, signal_number: int) -> InterruptedRunError:
        """Save a checkpoint, and name it in the error."""
        self._save_checkpoint()
        path = checkpoint_path(self.run.folder.checkpoints, self.state.step)
        return InterruptedRunError(f"stopped after step {self.state.step}; saved {path}", signal_number)

    def _recover(self, error: DivergedError) -> None:
        """Return to the last checkpoint, to continue from there with other data.

        Raises:
            DivergedError: the settings do not say so, or there were too many rollbacks.
        """
        guard, before = self.settings.divergence, self.state
        if guard.on_divergence != "rollback" or before.rollbacks >= guard.max_rollbacks:
            self._record(event=f"stopped: {error}")
            tried = f" after {before.rollbacks} rollbacks" if before.rollbacks else ""
            raise DivergedError(
                f"{error}{tried}; {self.saver.kept()}; a lower --learning-rate or more --warmup-steps usually helps",
                error.step,
            ) from error
        fetch_newest(self.settings, self.processes)
        checkpoint = load_newest_checkpoint(self.run.folder.checkpoints, self.processes)
        self.restore(checkpoint)
        state = self.state
        # As for PaLM (Chowdhery et al. 2022, section 5.1): the batches from there to the fault are skipped.
        state.batches_left_out = before.batches_left_out + error.step - state.step
        state.learning_rate_scale = before.learning_rate_scale * guard.rollback_learning_rate_factor
        state.rollbacks = before.rollbacks + 1
        message = f"rolled back from step {error.step} to {state.step}: {error}"
        logger.warning("%s", message)
        if self.metrics is not None:
            self.metrics.rewind(state.step)
        self._record(event=message)
        self._save_checkpoint()  # so that a kill from here on does not undo the rollback


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def new_trainer(settings: TrainSettings, processes: Processes, device: Device) -> Trainer:
    """A trainer of the run that `prepare_run` prepares; in the first process it measures itself, if the settings ask.

    Raises what `prepare_run` raises.
    """
    profile = TrainingProfile(device) if settings.watch.profile and processes.is_first else None
    with no_stage("preparation") if profile is None else profile.stage("preparation"):
        return Trainer(prepare_run(settings, processes, device), profile)


def train(settings: TrainSettings) -> Path:
    """Train a model, together with the other processes that `torchrun` started.

    Returns:
        The finished model's folder; the checkpoint, where `stop_after` ended the run before.

    Raises what `prepare_run` and `Trainer.train` raise.
    """
    with join_processes(settings.machine, settings.model.d_model) as (processes, device):
        return new_trainer(settings, processes, device).train()
