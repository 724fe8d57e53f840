"""The progress of a training run: what a checkpoint holds besides weights, optimizer and random generators."""

from dataclasses import dataclass, field


@dataclass
class RunState:
    """What changes during a run, in plain values.

    Attributes:
        step: Optimizer steps done, including those whose update was skipped.
        tokens: Tokens of these steps.
        counted_tokens: Those of them that the loss counts.
        seconds: Wall-clock time of the run until this was saved, evaluation and samples included.
        batches_left_out: How many batches of the data's order rollbacks have skipped.
        learning_rate_scale: What rollbacks have multiplied the learning rate by.
        recent_losses: Of the last fault-free steps, oldest first.
        skips_in_a_row: How many of the latest steps were skipped without a fault-free one in between.
        rollbacks: How many times the run has returned to a checkpoint.
        evaluated_step: The step of the last evaluation, if there was one.
        validation_loss: Its result in nats per token.
        bits_per_byte: Its result in bits.
        best_step: The step of the checkpoint with the lowest validation loss, where it is kept.
        best_loss: That loss.
    """

    step: int = 0
    tokens: int = 0
    counted_tokens: int = 0
    seconds: float = 0.0
    batches_left_out: int = 0
    learning_rate_scale: float = 1.0
    recent_losses: list[float] = field(default_factory=list)
    skips_in_a_row: int = 0
    rollbacks: int = 0
    evaluated_step: int | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    best_step: int | None = None
    best_loss: float | None = None
