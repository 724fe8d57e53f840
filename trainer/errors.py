"""The errors of the trainer whose messages are for people."""


class TrainerError(Exception):
    """A job that cannot go on: the message says what is wrong, where, and what to do. Exit status 1."""


class UsageError(TrainerError):
    """Settings that do not fit together, found before any work is done. Exit status 2."""


class DivergedError(TrainerError):
    """The loss or the gradient is no longer a finite number, or the loss jumped, at `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class InterruptedRunError(TrainerError):
    """A job stopped by a signal after its state was saved. Exit status 128 + `signal_number`."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
