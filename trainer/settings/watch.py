"""Settings of logging, evaluation and samples during a run."""

from dataclasses import dataclass

from cyclopts import Group, Parameter

from trainer.settings.fields import Settings, setting


@Parameter(name="*", group=Group("Watching: logs, evaluations and samples", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class WatchSettings(Settings, affects="watching"):
    """Logging, evaluation and samples. None of these changes the training."""

    log_interval: int = setting(10, minimum=1)
    """Steps between two lines of metrics.jsonl (and of the log where there is no terminal)."""

    eval_interval: int = setting(500, minimum=0)
    """Steps between two evaluations on the validation tokens; 0 evaluates at the end only. With --init there is one
    before the first step, too."""

    eval_tokens: int = setting(100_000, minimum=0)
    """How many validation tokens an evaluation covers, from the first on; 0: all. Compare runs at equal numbers."""

    sample_interval: int = setting(500, minimum=0)
    """Steps between two samples; 0 never samples."""

    sample_prompt: str = "Once upon a time"
    """What samples begin with."""

    sample_tokens: int = setting(100, minimum=1)
    """Length of a sample in tokens."""

    temperature: float = setting(0.8, minimum=0, maximum=100)
    """Sampling temperature of samples, 0 to 100; also the default in the finished model's generation_config.json.
    0.8 suits prose; lower is safer and more repetitive; 0 always takes the most likely token. With --init, default:
    that of the folder."""

    top_p: float = setting(0.95, minimum=0, maximum=1)
    """Sample from the most likely tokens whose probabilities add up to this; saved like the temperature."""

    watch: bool = False
    """Serve the page of `watch` about this run (with `sweep`, about all of its runs) while it trains: at port 8002, or
    another one where that is in use; the address is in the log."""

    profile: bool = False
    """Write where the time and memory of this start went: profile.txt and profile.json in the output folder, and three
    steps as torch's profiler sees them: profile_trace.json.gz, which opens at https://ui.perfetto.dev."""

    tensorboard: bool = False
    """Write the metrics as TensorBoard events too, beside metrics.jsonl: `tensorboard --logdir OUTPUT`. Needs
    `pip install -c constraints.txt -e '.[tensorboard]'` in the checkout."""

    wandb: str | None = None
    """Send the metrics to this project of Weights & Biases too; WANDB_MODE=offline writes files only. Needs
    `pip install wandb`."""
