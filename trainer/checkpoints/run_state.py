"""How far a training run has come: all that a checkpoint must hold beside weights, optimizer and random generators."""

from dataclasses import dataclass, field


@dataclass
class RunState:
    """What changes while a run goes on, in plain values.

    Attributes:
        step: Optimizer steps done; those whose update was left out count.
        seconds: Wall-clock time of the run until this was saved, evaluation and samples included.
        batches_left_out: How many batches of the data's order were passed over after rollbacks.
        learning_rate_scale: What rollbacks made of the learning rate.
        recent_losses: Of the last sound steps, oldest first.
        skips_in_a_row: Steps just now whose update was left out.
        rollbacks: How often the run went back.
        evaluated_step: The step of the last evaluation, if there was one.
        validation_loss: Its result in nats a token.
        bits_per_byte: Its result in bits.
        best_step: The step of the checkpoint with the lowest validation loss, where it is kept.
        best_loss: That loss.
    """

    step: int = 0
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
