"""A training run from its settings to the finished model folder."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from shared.lm import GenerationDefaults, generate, save_model_folder
from shared.lm.folder import valid_token_mask
from trainer.checkpoint import Checkpoint, list_checkpoints, load_newest_checkpoint, save_checkpoint
from trainer.data import TrainingData, open_training_data
from trainer.device import choose_device
from trainer.errors import DivergedError, InterruptedRunError, UsageError
from trainer.evaluation import Evaluation, evaluate, token_byte_lengths
from trainer.loop import Step, training_steps
from trainer.metrics import MetricsFile
from trainer.model import apply_recipe, new_model
from trainer.optimizer import build_optimizer
from trainer.progress import Report, progress
from trainer.run import RunFolder
from trainer.run_record import record_start
from trainer.sampling import encode_prompt
from trainer.settings import TrainSettings, to_table
from trainer.signals import StopRequest, stop_on_signals
from trainer.trackers import require_trackers, trackers
from trainer.windows import RandomWindows

logger = logging.getLogger(__name__)

# Settings that may differ when a run goes on, since they do not change what is trained.
_FREE_ON_RESUME = {
    *("data", "output", "resume", "overwrite", "checkpoint_interval", "keep", "device", "compile", "threads"),
    *("log_interval", "eval_interval", "eval_tokens", "sample_interval", "sample_prompt", "sample_tokens"),
    *("temperature", "top_p", "tensorboard", "wandb"),
}
_BYTES_PER_PARAMETER = 16  # float32: weight, gradient, and AdamW's two averages


class Trainer:
    """One training run.

    Raises on construction, before anything is trained or overwritten, whatever `open_training_data`, `choose_device`,
    `RunFolder.prepare` and `load_newest_checkpoint` raise.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        require_trackers(settings.watch)
        if settings.machine.threads is not None:
            torch.set_num_threads(settings.machine.threads)
        self.device = choose_device(settings.machine.device, settings.machine.dtype)
        self.data = open_training_data(settings.data)
        self.windows = RandomWindows(self.data.train, settings.model.context_length, settings.optimization.seed)
        self.sample_prompt = encode_prompt(
            self.data.tokenizer, settings.watch.sample_prompt, settings.model.context_length
        )
        self.run = RunFolder(settings.output)
        model = new_model(settings.model, self.data.tokenizer.vocab_size, settings.optimization.seed)
        self.run.prepare(settings)
        checkpoint = load_newest_checkpoint(self.run.checkpoints) if settings.checkpoints.resume else None
        if checkpoint is not None:
            self._check_same_run(checkpoint)
            model = checkpoint.model
        self.run.write_settings(settings)
        self.step = checkpoint.step if checkpoint else 0
        record_start(
            self.run.record_file,
            settings=to_table(settings),
            data=self.data.identity(),
            parameters=model.config.num_parameters,
            step=self.step,
            device=str(self.device),
            resumed=checkpoint is not None,
        )
        self.metrics = MetricsFile(self.run.metrics_file, first_step=self.step)
        self.model = model.to(self.device.torch_device).train()
        o = settings.optimization
        apply_recipe(self.model, o, self.data.tokenizer.end_of_text_id)
        self.optimizer = build_optimizer(
            self.model, kind=o.optimizer, learning_rate=o.learning_rate, betas=o.betas, weight_decay=o.weight_decay
        )
        if checkpoint is not None:
            self.optimizer.load_state_dict(checkpoint.optimizer)  # moves the state to the parameters' device
            logger.info("resumed from %s", checkpoint.path)
        self.generation = GenerationDefaults(
            temperature=settings.watch.temperature,
            top_p=settings.watch.top_p,
            eos_token_ids=_end_of_text(self.data),
        )
        self.valid_tokens = valid_token_mask(self.data.tokenizer, self.model.config)
        self.byte_lengths = token_byte_lengths(self.data.tokenizer, self.valid_tokens)
        self.evaluation: Evaluation | None = None

    def train(self) -> Path:
        """Run to the last step.

        Returns:
            The finished model's folder.

        Raises:
            InterruptedRunError: SIGINT or SIGTERM came; a checkpoint was saved.
            DivergedError: the loss or the gradient is no longer finite; earlier checkpoints stay.
        """
        self._describe()
        max_steps = self.settings.optimization.max_steps
        with stop_on_signals() as stop, progress() as new_bar:
            report = new_bar("training", max_steps, start=self.step)
            for step in self._steps():
                self.step = step.number
                self._after(step, report)
                if stop:
                    raise self._interrupted(stop)
        self._evaluate()
        self._save_checkpoint()
        self._save_model()
        return self.run.model

    def _steps(self) -> Iterator[Step]:
        """The steps still to take; where they diverge, the error also names the checkpoint to go back to."""
        forward = torch.compile(self.model) if self.settings.machine.compile else self.model
        try:
            yield from training_steps(
                self.model, self.optimizer, self.windows, self.settings, self.device, start=self.step, forward=forward
            )
        except DivergedError as error:
            good = next(iter(list_checkpoints(self.run.checkpoints)), None)
            kept = f"the last good checkpoint is {good}" if good else "no checkpoint had been saved yet"
            raise DivergedError(f"{error}; {kept}") from error

    def _after(self, step: Step, report: Report) -> None:
        """What is due after a step: metrics, evaluation, sample, checkpoint."""
        watch, last = self.settings.watch, step.number == self.settings.optimization.max_steps
        tokens_per_second = self.settings.tokens_per_step / step.seconds
        report(
            step.number,
            f"loss {step.loss:.3f} lr {step.learning_rate:.1e} norm {step.grad_norm:.2f} "
            f"{tokens_per_second:,.0f} tok/s",
        )
        if step.number == 1 or step.number % watch.log_interval == 0 or last:
            self.metrics.write(
                step=step.number,
                loss=step.loss,
                learning_rate=step.learning_rate,
                grad_norm=step.grad_norm,
                tokens=step.number * self.settings.tokens_per_step,
                tokens_per_second=round(tokens_per_second, 1),
            )
        if last:
            return
        if _is_due(step.number, watch.eval_interval):
            self._evaluate()
        if _is_due(step.number, watch.sample_interval):
            self._sample()
        if _is_due(step.number, self.settings.checkpoints.checkpoint_interval):
            self._save_checkpoint()

    def _evaluate(self) -> None:
        """Score the validation tokens, where there are any."""
        if self.data.validation is None:
            return
        limit = self.settings.watch.eval_tokens
        self.evaluation = evaluate(
            self.model,
            self.data.validation.tokens[: limit or None],
            self.byte_lengths,
            context_length=self.settings.model.context_length,
            batch_size=self.settings.optimization.batch_size,
            device=self.device,
            begin_id=self.data.validation.manifest.end_of_text_id,
        )
        loss, bits = self.evaluation.loss, self.evaluation.bits_per_byte
        in_bits = "" if bits is None else f", {bits:.4f} bits per byte"
        logger.info("step %d: validation loss %.4f%s", self.step, loss, in_bits)
        self.metrics.write(step=self.step, validation_loss=loss, bits_per_byte=bits)

    def _sample(self) -> None:
        """Log what the model writes now, with the same seed each time, so that samples compare."""
        watch = self.settings.watch
        ids = generate(
            self.model,
            self.sample_prompt,
            self.generation.params(seed=self.settings.optimization.seed),
            max_tokens=watch.sample_tokens,
            eos_token_ids=self.generation.eos_token_ids,
            valid_tokens=self.valid_tokens,
        )
        text = watch.sample_prompt + self.data.tokenizer.decode(list(ids), skip_special_tokens=True)
        logger.info("step %d: %s", self.step, text)
        self.metrics.write(step=self.step, sample=text)

    def _save_checkpoint(self) -> Path:
        """Write a checkpoint of this step."""
        path = save_checkpoint(
            self.run.checkpoints,
            step=self.step,
            model=self.model,
            optimizer=self.optimizer,
            tokenizer=self.data.tokenizer,
            generation=self.generation,
            provenance=self._provenance(),
            settings=to_table(self.settings),
            data=self.data.identity(),
            keep=self.settings.checkpoints.keep,
        )
        logger.info("step %d: saved %s", self.step, path)
        return path

    def _save_model(self) -> None:
        """Write the finished model's folder."""
        save_model_folder(
            self.run.model,
            model=self.model,
            tokenizer=self.data.tokenizer,
            generation=self.generation,
            provenance=self._provenance(),
            overwrite=True,
        )
        logger.info("the model is in %s", self.run.model)

    def _provenance(self) -> dict[str, Any]:
        """What the model folder tells about its making; no paths, which mean nothing elsewhere."""
        settings = {name: value for name, value in to_table(self.settings).items() if name not in _FREE_ON_RESUME}
        return {
            "steps": self.step,
            "tokens": self.step * self.settings.tokens_per_step,
            "validation_loss": self.evaluation and self.evaluation.loss,
            "bits_per_byte": self.evaluation and self.evaluation.bits_per_byte,
            "data": self.data.identity(),
            "settings": settings,
        }

    def _interrupted(self, stop: StopRequest) -> InterruptedRunError:
        """Save, and say where."""
        path = self._save_checkpoint()
        assert stop.signal_number is not None
        return InterruptedRunError(f"stopped after step {self.step}; saved {path}", stop.signal_number)

    def _check_same_run(self, checkpoint: Checkpoint) -> None:
        """Refuse to go on with other settings or other data than the checkpoint's."""
        here = to_table(self.settings) | {"data": self.data.identity()}
        there = checkpoint.settings | {"data": checkpoint.data}
        free = _FREE_ON_RESUME - {"data"}
        differing = [name for name in here if name not in free and here[name] != there.get(name)]
        if "max_steps" in differing:
            differing.remove("max_steps")
            logger.warning(
                "max_steps is %s now and was %s: from here on the learning rate follows the new schedule",
                here["max_steps"],
                there["max_steps"],
            )
        if differing:
            lines = "".join(f"\n  {name}: {there.get(name)} in the run, {here[name]} now" for name in differing)
            raise UsageError(
                f"cannot go on from {checkpoint.path} with other settings than the run's own, which are in "
                f"{self.run.settings_file}:{lines}"
            )

    def _describe(self) -> None:
        """Say what is about to happen, in the numbers by which one judges it."""
        m, o = self.model.config, self.settings.optimization
        parameters, tokens = m.num_parameters, len(self.data.train.tokens)
        seen = o.max_steps * self.settings.tokens_per_step
        logger.info(
            "model: %s parameters (%d layers, d_model %d, %d heads, context %d, vocabulary %s)",
            *(f"{parameters:,}", m.num_layers, m.d_model, m.num_heads, m.context_length, f"{m.vocab_size:,}"),
        )
        logger.info(
            "data: %s tokens to train on, %s to validate on",
            f"{tokens:,}",
            f"{len(self.data.validation.tokens):,}" if self.data.validation else "none",
        )
        logger.info(
            "plan: %s steps of %s tokens: %.1f times the data, %.1f tokens for each parameter",
            *(f"{o.max_steps:,}", f"{self.settings.tokens_per_step:,}", seen / tokens, seen / parameters),
        )
        logger.info(
            "device: %s; weights and optimizer take about %.0f MB",
            *(self.device, parameters * _BYTES_PER_PARAMETER / 1e6),
        )


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _end_of_text(data: TrainingData) -> tuple[int, ...]:
    id_ = data.tokenizer.end_of_text_id
    return () if id_ is None else (id_,)


def train(settings: TrainSettings) -> Path:
    """Train a model; see `Trainer`.

    Returns:
        The finished model's folder.
    """
    trainer = Trainer(settings)
    with trackers(trainer.metrics, trainer.run, settings):
        return trainer.train()
