"""A training run from its settings to the finished model folder."""

import logging
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trainer.checkpoints.checkpoint import Checkpoint
from trainer.checkpoints.folders import checkpoint_path
from trainer.checkpoints.resume import check_same_run, warn_of_other_machine
from trainer.checkpoints.run_state import RunState
from trainer.checkpoints.saving import Saver
from trainer.components.loss import TrainingLoss
from trainer.components.model import apply_recipe, model_config, new_model
from trainer.components.optimizer import build_optimizer
from trainer.compute.device import Device, choose_device, compute_deterministically
from trainer.compute.parallel import divide_state, load_weights, parallel_loss, shard
from trainer.compute.processes import ONE_PROCESS, Processes, check_batch, join_processes
from trainer.console.progress import NewBar, Report, progress
from trainer.console.signals import StopRequest, stop_on_signals
from trainer.errors import DivergedError, InterruptedRunError, TrainerError
from trainer.estimate.estimate import estimate_run, summary
from trainer.estimate.fitting import check_fit
from trainer.runs.folder import RunFolder
from trainer.runs.metrics import MetricsFile
from trainer.runs.record import record_start
from trainer.runs.trackers import require_trackers, trackers
from trainer.settings.train import USUAL_WARMUP_STEPS, TrainSettings, to_table
from trainer.tokens.dataset import open_training_data
from trainer.tokens.token_file import TokenFileError
from trainer.tokens.windows import ShuffledWindows
from trainer.training.loop import Step, training_steps
from trainer.training.watching import Watcher

logger = logging.getLogger(__name__)


class Trainer:
    """One training run.

    Raises on construction, before anything is trained or overwritten, whatever `open_training_data`, `choose_device`,
    `RunFolder.prepare`, `load_newest_checkpoint` and `check_same_run` raise.
    """

    def __init__(
        self, settings: TrainSettings, processes: Processes = ONE_PROCESS, device: Device | None = None
    ) -> None:
        """Make everything ready for the first step.

        Args:
            settings: The run's settings.
            processes: Those that train together, each with a Trainer of its own.
            device: From `join_processes`; None takes the settings'.
        """
        self.settings, o = settings, settings.optimization
        self.processes = processes
        require_trackers(settings.watch)
        if settings.machine.deterministic:
            compute_deterministically()
        self.device = device or choose_device(
            settings.machine.device, settings.machine.dtype, d_model=settings.model.d_model
        )
        check_batch(settings, processes)
        self.data = open_training_data(settings.data)
        self.windows = ShuffledWindows(self.data.train, settings.model.context_length, o.seed)
        config = model_config(settings.model, self.data.tokenizer.vocab_size)
        self.estimate = estimate_run(settings, config, self.device, processes=processes.count)
        check_fit(settings, config, self.device, self.estimate.available, processes.count)
        self.model = new_model(settings.model, config.vocab_size, o.seed)
        apply_recipe(self.model, o, self.data.tokenizer.end_of_text_id)
        self.watcher = Watcher(self.model, self.data, settings, self.device, processes)
        self.run = RunFolder(settings.output)
        self.saver = Saver(self.run, settings, self.data, self.watcher.generation, self.device, processes)
        if processes.is_first:
            self.run.prepare(settings)
        processes.wait()
        checkpoint = self.saver.load_checkpoint() if settings.checkpoints.resume else None
        if checkpoint is not None:
            check_same_run(checkpoint, settings, self.data.identity(), self.run.settings_file)
            warn_of_other_machine(checkpoint, settings, self.device, processes)
        self.model.to(self.device.torch_device).train()
        loss_function = TrainingLoss(self.model)
        shard(loss_function, processes, settings.machine.parallel, self.device.torch_device)
        self.optimizer = build_optimizer(
            self.model, kind=o.optimizer, learning_rate=o.learning_rate, betas=o.betas, weight_decay=o.weight_decay
        )
        self.loss_function = parallel_loss(loss_function, settings, processes, self.device.torch_device)
        self.state = RunState()
        self.saved_step: int | None = None  # that of the newest checkpoint of this start, while the run is as in it
        if checkpoint is not None:
            self._restore(checkpoint)
            logger.info("resumed from %s", checkpoint.path)
        self.metrics: MetricsFile | None = None
        if processes.is_first:
            self._record_start(resumed=checkpoint is not None)
            self.metrics = MetricsFile(self.run.metrics_file, first_step=self.state.step)
        self.started = time.perf_counter() - self.state.seconds
        self.unlogged: list[Step] = []

    def train(self) -> Path:
        """Run to the last step.

        Returns:
            The finished model's folder; the checkpoint, where `stop_after` ended it before.

        Raises:
            InterruptedRunError: SIGINT or SIGTERM came; a checkpoint was saved.
            DivergedError: the loss or the gradient diverged, and the settings know no more help; checkpoints stay.
            TrainerError: a file cannot be written, or the token files were changed; the message names the last good
                checkpoint.
        """
        self._describe()
        if self.settings.divergence.on_divergence == "rollback" and self.state.step == 0:
            self._save_checkpoint()  # so that there is always something to go back to
        with stop_on_signals() as stop, progress(shown=self.processes.is_first) as new_bar:
            while not self._reach_the_end(new_bar, stop):
                pass
        if not self._is_done:
            path = checkpoint_path(self.run.checkpoints, self.state.step)
            logger.info("stopped after step %d, as --stop-after says; --resume goes on from %s", self.state.step, path)
            return path
        self.saver.save_model(self.model, self.state)
        return self.run.model

    @property
    def _is_done(self) -> bool:
        return self.state.step >= self.settings.optimization.max_steps

    def _reach_the_end(self, new_bar: NewBar, stop: StopRequest) -> bool:
        """Take the steps that are left and save the last; false where it went back to an earlier one instead."""
        report = new_bar("training", self.settings.optimization.max_steps, start=self.state.step)
        try:
            for step in training_steps(
                self.model,
                self.optimizer,
                self.windows,
                self.settings,
                self.device,
                state=self.state,
                loss_function=self.loss_function,
                processes=self.processes,
                stop=stop,
            ):
                self._after(step, report)
                # One process can stop for what came since; several must stop at the same step.
                signal_number = stop.signal_number if self.processes.count == 1 else step.stop_signal
                if signal_number is not None:
                    raise self._interrupted(signal_number)
                if step.number == self.settings.checkpoints.stop_after:
                    break
            if self._is_done and self.state.evaluated_step != self.state.step:
                self._evaluate()
            self._save_checkpoint()
        except DivergedError as error:
            self._recover(error)
            return False
        except TokenFileError as error:
            if self.processes.count == 1:  # others may be within a step, and saving takes all
                self._save_checkpoint()
            raise TrainerError(
                f"{error}; {self.saver.kept()}; when the file is what it was, --resume goes on"
            ) from error
        return True

    def _after(self, step: Step, report: Report) -> None:
        """What is due after a step: metrics, evaluation, sample, checkpoint."""
        watch, last = self.settings.watch, self._is_done
        self.unlogged.append(step)
        tokens_per_second = (
            len(self.unlogged) * self.settings.tokens_per_step / sum(each.seconds for each in self.unlogged)
        )
        report(
            step.number,
            f"loss {step.loss:.3f} lr {step.learning_rate:.1e} norm {step.grad_norm:.2f} "
            f"{tokens_per_second:,.0f} tok/s",
        )
        if step.fault is not None:
            logger.warning("step %d: %s; its update is left out", step.number, step.fault)
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
            text = self.watcher.sample()
            if text is not None:
                logger.info("step %d: %s", step.number, text)
                self._record(sample=text)
        if is_best or _is_due(step.number, self.settings.checkpoints.checkpoint_interval):
            self._save_checkpoint()

    def _evaluate(self) -> bool:
        """Score the validation tokens, where there are any; whether a checkpoint of this, the best, is to be kept."""
        evaluation = self.watcher.evaluate()
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
        """Write one record of the step that the run has come to.

        Raises:
            TrainerError: it cannot be written; names the last good checkpoint.
        """
        if self.metrics is None:
            return
        self.state.seconds = time.perf_counter() - self.started
        tokens = self.state.step * self.settings.tokens_per_step
        try:
            self.metrics.write(step=self.state.step, tokens=tokens, seconds=round(self.state.seconds, 3), **values)
        except TrainerError as error:
            raise TrainerError(f"{error}; {self.saver.kept()}") from error

    def _save_checkpoint(self) -> None:
        """Write a checkpoint of this step unless there is one, and see that the metrics are as safe as it."""
        if self.saved_step == self.state.step:
            return
        self.state.seconds = time.perf_counter() - self.started
        if self.metrics is not None:
            self.metrics.sync()
        self.saver.save_checkpoint(self.model, self.optimizer, self.state)
        self.saved_step = self.state.step

    def _interrupted(self, signal_number: int) -> InterruptedRunError:
        """Save, and say where: whoever stops us may not wait for long."""
        self._save_checkpoint()
        self.processes.wait()  # until it is written
        path = checkpoint_path(self.run.checkpoints, self.state.step)
        return InterruptedRunError(f"stopped after step {self.state.step}; saved {path}", signal_number)

    def _recover(self, error: DivergedError) -> None:
        """Go back to the last checkpoint, to go on from there with other data.

        Raises:
            DivergedError: the settings do not say so, or it was done too often.
        """
        guard, before = self.settings.divergence, self.state
        if guard.on_divergence != "rollback" or before.rollbacks >= guard.max_rollbacks:
            self._record(event=f"stopped: {error}")
            tried = f" after going back {before.rollbacks} times" if before.rollbacks else ""
            raise DivergedError(
                f"{error}{tried}; {self.saver.kept()}; a lower --learning-rate or more --warmup-steps usually helps",
                error.step,
            ) from error
        checkpoint = self.saver.load_checkpoint()
        self._restore(checkpoint)
        state = self.state
        # As for PaLM (Chowdhery et al. 2022, section 5.1): the batches from there to the fault are not met again.
        state.batches_left_out = before.batches_left_out + error.step - state.step
        state.learning_rate_scale = before.learning_rate_scale * guard.rollback_learning_rate_factor
        state.rollbacks = before.rollbacks + 1
        message = f"went back from step {error.step} to {state.step}: {error}"
        logger.warning("%s", message)
        if self.metrics is not None:
            self.metrics.rewind(state.step)
        self._record(event=message)
        self._save_checkpoint()  # so that a kill from here on does not undo it

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go to where the run was when the checkpoint was saved."""
        load_weights(self.model, checkpoint.model.state_dict())
        self.optimizer.load_state_dict(checkpoint.optimizer)  # moves the state to the parameters' device
        divide_state(self.optimizer)
        self.state, self.saved_step = checkpoint.run, None
        self.saver.go_on_from(checkpoint)

    def _record_start(self, *, resumed: bool) -> None:
        """Write down what the run is made from."""
        self.run.write_settings(self.settings)
        record_start(
            self.run.record_file,
            settings=to_table(self.settings),
            data=self.data.identity(),
            parameters=self.model.config.num_parameters,
            step=self.state.step,
            device=str(self.device),
            processes=self.processes.count,
            resumed=resumed,
        )

    def _describe(self) -> None:
        """Say what is about to happen, in the numbers by which one judges it."""
        m, o = self.model.config, self.settings.optimization
        parameters, tokens = m.num_parameters, len(self.data.train)
        seen = o.max_steps * self.settings.tokens_per_step
        logger.info(
            "model: %s parameters (%d layers, d_model %d, %d heads, context %d, vocabulary %s)",
            *(f"{parameters:,}", m.num_layers, m.d_model, m.num_heads, m.context_length, f"{m.vocab_size:,}"),
        )
        logger.info(
            "data: %s tokens to train on, %s to validate on",
            f"{tokens:,}",
            f"{len(self.data.validation):,}" if self.data.validation else "none",
        )
        logger.info(
            "plan: %s steps of %s tokens: %.1f times the data, %.1f tokens for each parameter",
            *(f"{o.max_steps:,}", f"{self.settings.tokens_per_step:,}", seen / tokens, seen / parameters),
        )
        if o.warmup_steps == o.usual_warmup_steps < USUAL_WARMUP_STEPS:
            logger.info(
                "warm-up: %d steps, as a run of %d has by default; %d would be usual, in longer ones",
                *(o.warmup_steps, o.max_steps, USUAL_WARMUP_STEPS),
            )
        for line in summary(self.estimate):
            logger.info("%s", line)
        if self.processes.count > 1:
            logger.info("processes: %d, %s", self.processes.count, self.settings.machine.parallel)


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def train(settings: TrainSettings) -> Path:
    """Train a model; see `Trainer`.

    Returns:
        The finished model's folder.
    """
    with join_processes(settings.machine, settings.model.d_model) as (processes, device):
        trainer = Trainer(settings, processes, device)
        followed = nullcontext() if trainer.metrics is None else trackers(trainer.metrics, trainer.run, settings)
        with followed:
            return trainer.train()
