"""The settings of what one sees of a run."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.settings.checks import require


@Parameter(name="*", group=Group("Watching: what you see on the way", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Logging, evaluation and samples. None of these changes the training."""

    log_interval: int = 10
    """Steps between two lines of metrics.jsonl (and of the log where there is no terminal)."""

    eval_interval: int = 500
    """Steps between two evaluations on the validation tokens; 0 evaluates at the end only."""

    eval_tokens: int = 100_000
    """How many validation tokens an evaluation covers, from the first on; 0: all. Compare runs at equal numbers."""

    sample_interval: int = 500
    """Steps between two samples; 0 never samples."""

    sample_prompt: str = "Once upon a time"
    """What samples begin with."""

    sample_tokens: int = 100
    """Length of a sample in tokens."""

    temperature: float = 0.8
    """How boldly samples are drawn, 0 to 100; the finished model's generation_config.json carries it on as its default.
    0.8 suits prose; lower is safer and duller; 0 always takes the likeliest token."""

    top_p: float = 0.95
    """Draw samples from the likeliest tokens that together have this probability; carried on like the temperature."""

    tensorboard: bool = False
    """Write the metrics as TensorBoard events too, beside metrics.jsonl: `tensorboard --logdir OUTPUT`. Needs
    `pip install 'ownlm[tensorboard]'`."""

    wandb: str | None = None
    """Send the metrics to this project of Weights & Biases too; WANDB_MODE=offline writes files only. Needs
    `pip install wandb`."""

    def __post_init__(self) -> None:
        require(self, 1, "log_interval", "sample_tokens")
        require(self, 0, "eval_interval", "eval_tokens", "sample_interval")
        require(self, 0, "temperature", maximum=100)
        require(self, 0, "top_p", maximum=1)
