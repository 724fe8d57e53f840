"""What a job says of its progress where there is no terminal."""

import logging

import pytest

from trainer.console.progress import progress


def test_the_end_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A job may come to its end with its last part, and say so once more when all is done."""
    with caplog.at_level(logging.INFO), progress(shown=False) as new_bar:
        report = new_bar("scoring", 3)
        for completed in (1, 3, 3):
            report(completed, "loss 2.0")
    assert caplog.messages == ["scoring 100%  loss 2.0  0:00:00 left"]
