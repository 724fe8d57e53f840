"""The errors of the trainer; their messages are shown to the user."""


class TrainerError(Exception):
    """A job failed: the message says what is wrong, where, and what to do. Exit status 1."""


class UsageError(TrainerError):
    """Invalid or conflicting settings, found before any work is done. Exit status 2."""


class DivergedError(TrainerError):
    """The loss, the gradient or a weight is NaN or infinite, or the loss jumped, at `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class InterruptedRunError(TrainerError):
    """A signal stopped the job after its state was saved. Exit status 128 + `signal_number`."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
