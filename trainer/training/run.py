"""From settings to a run that is ready to train: everything is checked before the first file is written."""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from shared.lm import ModelConfig, ModelFolderError, Transformer, read_description
from shared.system.folder_swap import remove
from trainer.checkpoints.adapter import ADAPTER_CONFIG
from trainer.checkpoints.checkpoint import Checkpoint, load_newest_checkpoint
from trainer.checkpoints.folders import link_best, list_checkpoints
from trainer.checkpoints.inherited import Inherited, inherit, inherit_again
from trainer.checkpoints.resume import check_same_base, check_same_run, warn_of_other_machine
from trainer.checkpoints.store import prepare_store, resolve_resume
from trainer.components.lora import adapter_sizes, add_adapters, trained_parameters
from trainer.components.model import apply_recipe, model_config, new_model
from trainer.components.parent import Parent, check_architecture, check_tokenizer, parent_of, read_parent, windowed
from trainer.compute.device import Device, choose_device, compute_deterministically
from trainer.compute.processes import ONE_PROCESS, Processes, check_batch
from trainer.errors import UsageError
from trainer.estimate.device_memory import available_memory
from trainer.estimate.estimate import step_flops
from trainer.estimate.fitting import check_fit
from trainer.estimate.memory import StepMemory
from trainer.runs.folder import RunFolder
from trainer.runs.trackers import require_trackers
from trainer.settings.stages import Stage
from trainer.settings.train import USUAL_WARMUP_STEPS, CheckpointSettings, TrainSettings
from trainer.tokens.dataset import TrainingData, open_training_data
from trainer.tokens.packed_windows import PackedWindows, open_windows
from trainer.tokens.windows import Windows
from trainer.training.watching import Watcher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run that is ready to train.

    Attributes:
        settings: Its settings.
        processes: Those that train together, each with a Run of its own.
        device: Where this process computes.
        data: What it trains on.
        windows: The training tokens in the order of the run.
        folder: Where it writes; locked, and empty unless the run is resumed.
        config: The model's, with the context of the run's windows.
        step_memory: What a step takes in this process, estimated.
        available_memory: Bytes that this process may take.
        model: With initial weights, in float32 on the CPU.
        inherited: What its folders take over from the model that it starts from, if there is one.
        watcher: Evaluates the model and draws samples.
        checkpoint: What the run is resumed from, if it is.
    """

    settings: TrainSettings
    processes: Processes
    device: Device
    data: TrainingData
    windows: Windows
    folder: RunFolder
    config: ModelConfig
    step_memory: StepMemory
    available_memory: int
    model: Transformer
    inherited: Inherited | None
    watcher: Watcher
    checkpoint: Checkpoint | None

    @property
    def trained_parameters(self) -> int:
        """Of the model, or of its adapters."""
        return trained_parameters(self.config, self.settings.lora)


def prepare_run(settings: TrainSettings, processes: Processes = ONE_PROCESS, device: Device | None = None) -> Run:
    """Check all that can be checked, open the data, initialize the model, and prepare the run's folder.

    Sets torch's global random generators, which the initial weights come from.

    Args:
        settings: The run's settings.
        processes: Those that train together; all of them call this.
        device: From `join_processes`; None chooses it by the settings.

    Raises:
        UsageError: settings that do not fit together or the machine, an output folder that holds a run, or a checkpoint
            that was made with other settings or data.
        TrainerError: the data cannot be used, the output folder is in use, or there is no intact checkpoint to resume.
    """
    require_trackers(settings.watch)
    if settings.machine.deterministic:
        compute_deterministically()
    if device is None:
        device = choose_device(settings.machine.device, settings.machine.dtype, d_model=settings.model.d_model)
    check_batch(settings, processes)
    settings = resolve_resume(settings, processes)
    data = open_training_data(settings.data)
    folder = RunFolder(settings.output)
    o = settings.optimization.for_data(has_mask=data.train.manifest.has_mask)
    settings = replace(settings, optimization=o)
    assert o.data_order is not None
    windows = open_windows(o.data_order, data.train, settings.model.context_length, o.seed)
    parent = open_parent(settings, folder)
    if parent is not None:
        check_tokenizer(parent, settings.data, data.tokenizer)
        data = replace(data, tokenizer=parent.tokenizer)
    config = model_config(settings.model, data.tokenizer.vocab_size) if parent is None else parent.config
    trained = windowed(config, settings)
    adapter_sizes(trained, settings.lora)
    available = available_memory(device.torch_device)
    memory = check_fit(settings, trained, device, available, processes.count)
    model, inherited = initial_model(settings, config, parent)
    apply_recipe(model, o, data.train.manifest.end_of_text_id)
    defaults = None if parent is None else parent.generation(settings)
    watcher = Watcher(model, data, settings, device, processes, generation=defaults)
    if processes.is_first:
        prepare_folder(folder, settings.checkpoints)
        prepare_store(settings.checkpoints)
    processes.barrier()
    checkpoint = None
    if settings.checkpoints.resume:
        checkpoint = load_newest_checkpoint(folder.checkpoints, processes)
        check_same_run(checkpoint, settings, data.identity(), folder.settings_file)
        check_same_base(checkpoint, settings.parent.init, inherited)
        warn_of_other_machine(checkpoint, settings, device, processes)
    found = (trained, memory, available, model, inherited, watcher, checkpoint)
    return Run(settings, processes, device, data, windows, folder, *found)


def open_parent(settings: TrainSettings, folder: RunFolder) -> Parent | None:
    """The model folder that a run starts from, if it does; its own checkpoint where it is resumed.

    Raises:
        ModelFolderError: the folder cannot be read.
        UsageError: the settings contradict it.
    """
    init = settings.parent.init
    if init is None:
        return None
    # Checkpoints of LoRA have the adapter merged into the weights: the frozen ones are in the folder only.
    from_checkpoint = settings.checkpoints.resume and settings.lora.lora_rank is None
    checkpoint = _readable_checkpoint(folder) if from_checkpoint else None
    if checkpoint is not None:
        parent = replace(read_parent(checkpoint), resumed=True)
        check_architecture(settings, parent)
        return parent
    _keep_apart(init.resolve(), folder.path.resolve())
    return parent_of(settings, init)


def _keep_apart(init: Path, output: Path) -> None:
    """Refuse to write into the folder that a run starts from, or to delete it with the run that it is part of."""
    if init.is_relative_to(output) or output.is_relative_to(init):
        raise UsageError(
            f"--output {output} and --init {init} are parts of one folder, which the run would change: choose another "
            "--output"
        )


def _readable_checkpoint(folder: RunFolder) -> Path | None:
    """The newest checkpoint that can be read except for its weights; all of a run agree in that."""
    for path in list_checkpoints(folder.checkpoints):
        with suppress(ModelFolderError):
            return read_description(path, research=True).path
    return None


def initial_model(
    settings: TrainSettings, config: ModelConfig, parent: Parent | None
) -> tuple[Transformer, Inherited | None]:
    """The model before its first step, and what the run takes over; the weights of a resumed run follow later.

    Sets torch's global random generators by the run's seed.
    """
    seed = settings.optimization.seed
    if parent is None:
        return new_model(settings.model, config.vocab_size, seed), None
    torch.manual_seed(seed)
    if parent.resumed:
        return Transformer(config), inherit_again(parent.description)
    model, dtype = parent.load_model()
    add_adapters(model, settings.lora)
    return model, inherit(parent.description, parent.tokenizer, dtype, parent.config.context_length)


def prepare_folder(folder: RunFolder, settings: CheckpointSettings) -> None:
    """Lock the folder for a new run or a resumed one; delete the run in it where the settings say `overwrite`.

    Raises:
        UsageError: there is a run and the settings say neither resume nor overwrite, or there is none to resume.
        TrainerError: another process trains into the folder.
    """
    if settings.resume and not folder.path.is_dir():
        raise UsageError(f"no run to resume in {folder.path}: give another --output, or omit --resume")
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.lock()
    holds_run = bool(list_checkpoints(folder.checkpoints)) or folder.model.exists()
    if holds_run and settings.overwrite:
        _delete_run(folder)
    elif holds_run and not settings.resume:
        raise UsageError(
            f"{folder.path} already holds a run: resume it (`--config {folder.settings_file} --resume`), "
            "replace it (--overwrite), or choose another --output"
        )
    folder.checkpoints.mkdir(exist_ok=True)  # now: a file in its place would be found hours later
    for unfinished in folder.checkpoints.glob(".step-*.partial"):  # left by a process that was killed
        remove(unfinished)
    if not settings.resume:
        folder.metrics_file.unlink(missing_ok=True)
        folder.delete_profile()


def _delete_run(folder: RunFolder) -> None:
    for path in list_checkpoints(folder.checkpoints):
        remove(path)
    link_best(folder.checkpoints, None)
    if (folder.model / "ownlm.json").is_file():  # any other folder of this name is not a run's
        remove(folder.model)
    if (folder.adapter / ADAPTER_CONFIG).is_file():
        remove(folder.adapter)


def log_plan(run: Run) -> None:
    """Log what is about to happen: sizes, steps and memory. Time is forecast once some steps were measured."""
    config, o = run.config, run.settings.optimization
    if run.inherited is not None:
        logger.info("start: the weights of %s (%s)", run.inherited.identity["name"], run.inherited.identity["dtype"])
    parameters, tokens = config.num_parameters, len(run.data.train)
    shapes = run.settings.shapes
    total = shapes.tokens(o.max_steps)
    logger.info(
        "model: %s parameters (%d layers, d_model %d, %d heads, context %d, vocabulary %s)",
        *(f"{parameters:,}", config.num_layers, config.d_model, config.num_heads, config.context_length),
        f"{config.vocab_size:,}",
    )
    if run.settings.lora.lora_rank is not None:
        lora, trained = run.settings.lora, run.trained_parameters
        logger.info(
            "LoRA: %s parameters are trained, %.2f %% of the model's: rank %d, alpha %g, beside %s",
            *(f"{trained:,}", 100 * trained / parameters, lora.lora_rank, lora.lora_alpha),
            ", ".join(adapter_sizes(config, lora)),
        )
    validation = f"{len(run.data.validation):,}" if run.data.validation else "none"
    logger.info("data: %s tokens for training, %s for validation", f"{tokens:,}", validation)
    manifest = run.data.train.manifest
    if manifest.has_mask:
        logger.info("conversations: the loss counts %s tokens, those of the answers", f"{manifest.counted:,}")
    if isinstance(run.windows, PackedWindows):
        sizes = f"{manifest.documents:,}", f"{run.windows.per_epoch:,}", 100 * run.windows.fill
        logger.info("packed: %s documents in %s windows, %.1f%% full", *sizes)
    logger.info(
        "plan: %s steps of %s tokens: %.1f times the data, %.1f tokens per parameter",
        *(f"{o.max_steps:,}", _range(shapes.stages, "tokens"), total / tokens, total / parameters),
    )
    if len(shapes.stages) > 1:
        logger.info(
            "schedule: %s windows of %s tokens per step, full from step %d on; the learning rate follows the steps",
            *(_range(shapes.stages, "windows"), _range(shapes.stages, "length"), shapes.stages[-1].first),
        )
    if o.data_order == "uniform":
        seen = 1 - math.exp(-total / tokens)
        logger.info("data order: uniform, with replacement: about %.0f %% of the tokens are seen", 100 * seen)
    if o.warmup_steps == o.usual_warmup_steps < USUAL_WARMUP_STEPS:
        logger.info(
            "warm-up: %d steps, the default for a run of %d; %d are usual in longer runs",
            *(o.warmup_steps, o.max_steps, USUAL_WARMUP_STEPS),
        )
    logger.info(
        "device: %s; a step takes about %.2f of %.1f GB of memory and %s GFLOP",
        *(run.device, run.step_memory.total / 1e9, run.available_memory / 1e9),
        f"{step_flops(run.settings, config) / 1e9:,.1f}",
    )
    if run.processes.count > 1:
        logger.info("processes: %d, %s", run.processes.count, run.settings.machine.parallel)


def _range(stages: Sequence[Stage], name: str) -> str:
    """What the stages have of something: one number, or the least and the most."""
    values = [getattr(stage, name) for stage in stages]
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
