"""Every setting of training, with the advice that `--help` shows.

Fields are options of the command line (`d_model` is `--d-model`) and keys of a TOML file alike.
"""

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cyclopts import Group, Parameter

from trainer.errors import UsageError
from trainer.settings.checkpoints import CheckpointSettings
from trainer.settings.divergence import DivergenceSettings
from trainer.settings.experiments import ExperimentSettings
from trainer.settings.fields import MAX_THREADS, Settings, option, setting
from trainer.settings.lora import LoraSettings
from trainer.settings.model import ModelSettings, ScalingSettings
from trainer.settings.parent import ParentSettings
from trainer.settings.stages import StepShapes, step_shapes
from trainer.settings.watch import WatchSettings

__all__ = [
    "CheckpointSettings",
    "DivergenceSettings",
    "ExperimentSettings",
    "LoraSettings",
    "MachineSettings",
    "ModelSettings",
    "OptimizationSettings",
    "ParentSettings",
    "ScalingSettings",
    "TrainSettings",
    "WatchSettings",
    "to_table",
    "to_toml",
]

DataOrder = Literal["epochs", "uniform", "packed"]

USUAL_WARMUP_STEPS = 100
"""Of a run of 500 steps or more; a shorter one has a fifth of its steps."""


@Parameter(name="*", group=Group("Optimization: how it is trained", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class OptimizationSettings(Settings):
    """Batches, learning rate and steps."""

    max_steps: int = setting(2_500, minimum=1)
    """Optimizer steps in all; 2500 of 1,024 tokens take ten minutes on two cores at the default size. A model of N
    parameters can use about 20 N tokens of fresh text; a few passes over the same text still help, many do not. The
    learning rate follows this number: to try the first steps of a long run, leave it and give --stop-after."""

    batch_size: int = setting(4, minimum=1)
    """Windows of context_length tokens that go through the model at once, in each process. On a CPU, small batches
    learn most per minute: 2 to 8. A GPU needs 32 or more to be busy, and more tokens."""

    total_batch_size: int | None = setting(None, minimum=1)
    """Windows for each optimizer step, a multiple of batch_size: more than batch_size are accumulated over several
    passes, or shared by several processes, with the same result as one large batch. Default: batch_size."""

    checkpoint_activations: bool = setting(False, affects="machine")
    """Keep only the input of each block for the backward pass, which computes the rest again (gradient checkpointing,
    Chen et al. 2016, arXiv 1604.06174): the same result in a fraction of the memory for activations, for a third more
    time. For models or contexts that do not fit otherwise, after --batch-size 1."""

    learning_rate: float = setting(2e-3, minimum=0)
    """Peak learning rate. 1e-3 to 4e-3 for models of a few million parameters, 6e-4 around 100 million. Halve it if
    the loss jumps. 0 leaves the weights as they are, for checks."""

    min_learning_rate_ratio: float = setting(0.0, minimum=0, maximum=1)
    """The learning rate at the end as a share of the peak. 0 gains a little in a short run; 0.1 is usual where the run
    may be made longer."""

    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """The learning rate after the warm-up: cosine falls all the time; wsd (warm-up, stable, decay) holds the peak and
    falls in the last part, so that a run can be made longer from a checkpoint before that; constant never falls."""

    decay_share: float = setting(0.2, minimum=0, maximum=1)
    """With wsd, the share of max_steps in which the rate falls. 0.1 to 0.2 is usual; 1 falls from the warm-up on."""

    decay_shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    """With wsd, how the rate falls: by the square root of the share done, slightly better in long runs, or linearly."""

    warmup_steps: int | None = setting(None, minimum=0)
    """Steps of linear growth to the peak. 1 to 5 % of max_steps; more if the loss jumps at the start. Default: 100, or
    a fifth of max_steps if that is less."""

    warmup_from_zero: bool = False
    """Let the first step of the warm-up have a rate of 0, as in CS336 and llama2.c; else the first of W warm-up steps
    has 1/(W + 1) of the peak, as in nanoGPT."""

    weight_decay: float = setting(0.1, minimum=0)
    """Decay of matrices and embeddings (never of norm gains). 0.1 is usual; it matters when text repeats."""

    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    """adamw for everything, or muon for the matrices within blocks, with adamw for the rest: fewer steps to the same
    loss, each a little slower. Both take the same learning rate and weight decay. sgd, for comparison, keeps no state;
    at rates of 0.1 to 1 it learns far less in as many steps."""

    momentum: float = setting(0.0, minimum=0)
    """Of sgd: the share of the last update that the next one adds; 0.9 is usual. 0 for none, and no state."""

    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's averages of the gradient and of its square. (0.9, 0.99) with small batches; (0.9, 0.95) is usual with
    large ones."""

    clip_grad_norm: float = setting(1.0, minimum=0)
    """Scale the gradient down to this global norm where it is longer; 0 never does."""

    z_loss: float = setting(0.0, minimum=0)
    """Weight of a penalty that keeps logits from drifting in long runs: 1e-4 in PaLM; 0 for none. The loss you see is
    always without it."""

    dropout: float = 0.0
    """Share of activations dropped in training (embeddings, attention weights, what each block adds). 0 for a few
    passes over the text; 0.1 to 0.2 where a small text is repeated many times."""

    document_mask: bool = False
    """Let a token see its own document only, not the one before it in the window. Slower; helps most where documents
    are short and have nothing to do with each other."""

    data_order: DataOrder | None = None
    """epochs: every token once, then again in another order. uniform: windows from random places, with replacement, as
    get_batch of nanoGPT and CS336 draws them; after as many tokens as there are, 63 % of them were seen. packed: whole
    documents, several in a window where they fit, with the document mask. Default: packed for conversations
    (`encode --chat`), else epochs."""

    seed: int = setting(0, minimum=0)
    """Determines the initial weights, the order of the data and the samples. The same seed gives the same run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", self.usual_warmup_steps)  # since it is frozen
        elif self.warmup_steps > self.longest_warmup:
            decay, limit = self.max_steps - self.longest_warmup, f"below --max-steps ({self.max_steps})"
            if decay > 1:
                limit += f" by the {decay} steps of --decay-share ({self.decay_share}): at most {self.longest_warmup}"
            raise UsageError(f"--warmup-steps ({self.warmup_steps}) must be {limit}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"--dropout must be at least 0 and below 1; got {self.dropout}")
        if self.total_batch_size is not None and self.total_batch_size % self.batch_size:
            lower = self.total_batch_size // self.batch_size * self.batch_size
            raise UsageError(
                f"--total-batch-size must be a multiple of --batch-size ({self.batch_size}), so "
                f"{lower or self.batch_size} or {lower + self.batch_size}; got {self.total_batch_size}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"--betas must be at least 0 and below 1; got {self.betas}")
        if self.momentum >= 1:
            raise UsageError(f"--momentum must be below 1; got {self.momentum}")
        if self.momentum and self.optimizer != "sgd":
            raise UsageError(f"--momentum needs --optimizer sgd; got {self.optimizer}")

    def for_data(self, *, has_mask: bool) -> "OptimizationSettings":
        """The same with the order of the data decided, for token files with a mask or without."""
        order = self.data_order or ("packed" if has_mask else "epochs")
        return replace(self, data_order=order, document_mask=self.document_mask or order == "packed")

    @property
    def usual_warmup_steps(self) -> int:
        """The default."""
        return min(USUAL_WARMUP_STEPS, self.max_steps // 5, self.longest_warmup)

    @property
    def longest_warmup(self) -> int:
        """The most warm-up steps: at least one step must follow at the peak, or with wsd the steps of its decay.

        A decay_share of 1 means all steps after the warm-up.
        """
        decay = round(self.decay_share * self.max_steps) if self.schedule == "wsd" and self.decay_share < 1 else 0
        return self.max_steps - max(1, decay)


@Parameter(name="*", group=Group("Machine", sort_key=7))
@dataclass(frozen=True, kw_only=True)
class MachineSettings(Settings, affects="machine"):
    """Device, precision and threads."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: the first GPU that works, else the CPU. With several processes each
    takes a GPU of its own."""

    dtype: Literal["auto", "float32", "bfloat16"] = setting("auto", affects="result")
    """Precision of the matrix products; weights and optimizer stay float32. `auto` is bfloat16 on GPUs that have it
    and, from a d_model of 256 on, on CPUs with instructions for it (AVX512-BF16, AMX), where it takes two thirds of the
    time; else float32. Evaluation of a finished model uses float32 on CPUs by default. (float16 is not offered: it
    needs loss scaling, and every GPU that would benefit has bfloat16.)"""

    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes (torchrun): ddp keeps the whole model in each; fsdp shards weights, gradients and
    optimizer state among them: slower, for models that do not fit on one device."""

    compile: bool = False
    """Compile the model with torch.compile: a slow start, then faster steps; needs a C++ compiler on the CPU."""

    deterministic: bool = False
    """On a GPU: only kernels that give the same result each time, so that resuming is exact there too; slower. On the
    CPU it always is, with the same number of threads."""

    threads: int | None = setting(None, minimum=1, maximum=MAX_THREADS)
    """CPU threads of each process. Default: one for each core, or as many as a container may use; several processes
    share the cores."""


@Parameter(name="*", group=Group("Folders", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """All settings of one training run."""

    data: Path
    """Folder that `encode` wrote: the shards of `train`, those of `val` if there are any, and the tokenizer."""

    output: Path = field(metadata={"affects": "watching"})
    """Folder of the run: train.toml, metrics.jsonl, checkpoints/, and at the end model/."""

    parent: ParentSettings = field(default_factory=ParentSettings)
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimization: OptimizationSettings = field(default_factory=OptimizationSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    experiments: ExperimentSettings = field(default_factory=ExperimentSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, path in (("--data", self.data), ("--output", self.output)):
            try:
                str(path).encode()
            except UnicodeEncodeError:
                raise UsageError(
                    f"{name} {str(path)!r} is not UTF-8, in which the settings of a run are kept: rename the folder"
                ) from None
        stop_after, max_steps = self.checkpoints.stop_after, self.optimization.max_steps
        if stop_after is not None and stop_after > max_steps:
            raise UsageError(f"--stop-after ({stop_after}) must be at most --max-steps ({max_steps})")
        last = self.shapes.stages[-1].first
        if last >= max_steps:
            raise UsageError(
                f"the last stage of --batch-schedule and --context-schedule ends at step {last}, which must be below "
                f"--max-steps ({max_steps}): no step would have the full batch and context"
            )
        own_rates = (self.experiments.embedding_learning_rate, self.experiments.head_learning_rate)
        if self.optimization.learning_rate == 0 and any(own_rates):
            raise UsageError(
                "--embedding-learning-rate and --head-learning-rate follow --learning-rate, which must be above 0"
            )
        if self.optimization.data_order == "packed" and self.experiments.context_schedule:
            raise UsageError("--context-schedule cuts windows, which --data-order packed does not: give one of them")
        if self.experiments.head_learning_rate is not None and self.model.tie_embeddings:
            raise UsageError(
                "--head-learning-rate: the output projection is the embedding; add --no-tie-embeddings, or give "
                "--embedding-learning-rate for both"
            )
        self._check_parent()
        if self.lora.lora_rank is not None:
            self._check_lora()

    def _check_lora(self) -> None:
        """Refuse what adapters beside frozen weights cannot be combined with."""
        if self.parent.init is None:
            raise UsageError("--lora-rank adapts an existing model: give its folder with --init")
        if self.parent.extend_tokens:
            raise UsageError(
                "--extend-tokens adds rows to the embedding, which LoRA would never train: omit --lora-rank, or begin "
                "from a folder that has the tokens"
            )
        for name in ("embedding_learning_rate", "head_learning_rate"):
            if getattr(self.experiments, name) is not None:
                raise UsageError(f"{option(name)} has no effect with --lora-rank, which freezes the embedding: omit it")
        if self.machine.parallel == "fsdp":
            raise UsageError("--parallel fsdp shards weights that are trained; with --lora-rank use --parallel ddp")

    def _check_parent(self) -> None:
        """Refuse options that set what a model folder has, and those that need one."""
        init, initialization = self.parent.init, self.model.initialization
        if init is None and initialization == "folder":
            raise UsageError("--initialization folder needs a model folder: give --init as well")
        if init is None:
            return
        if self.scaling.depth is not None or self.scaling.preset is not None:
            given = "--preset" if self.scaling.depth is None else "--depth"
            raise UsageError(f"{given} sets the shape of a new model, and --init {init} has its own: give one of them")
        if initialization != "folder":
            raise UsageError(f"--initialization is {initialization}, but the weights come from --init {init}: omit it")

    @property
    def total_batch_size(self) -> int:
        """Windows for each optimizer step."""
        return self.optimization.total_batch_size or self.optimization.batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens for each optimizer step; under a batch or context schedule, for each after its last stage."""
        return self.total_batch_size * self.model.context_length

    @property
    def shapes(self) -> StepShapes:
        """Windows and tokens of every step."""
        e = self.experiments
        return step_shapes(e.batch_schedule, e.context_schedule, self.total_batch_size, self.model.context_length)


def to_table(settings: object) -> dict[str, Any]:
    """The fields of settings, including nested ones, by name; paths become strings, tuples become lists."""
    table: dict[str, Any] = {}
    for item in dataclasses.fields(settings):  # type: ignore[arg-type]  # any of the dataclasses above
        value = getattr(settings, item.name)
        if dataclasses.is_dataclass(value):
            table |= to_table(value)
        elif isinstance(value, Path):
            table[item.name] = str(value)
        else:
            table[item.name] = list(value) if isinstance(value, tuple) else value
    return table


def to_toml(settings: object) -> str:
    """The settings as a TOML document for `--config`, without those that are not set."""
    # JSON's scalars and flat lists are TOML's too, but for DEL, which TOML wants escaped.
    lines = (
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in to_table(settings).items()
        if value is not None
    )
    return "\n".join(lines).replace("\x7f", "\\u007f") + "\n"
