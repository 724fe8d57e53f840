"""Recorded lifetimes of tensors."""

import torch

from trainer.estimate.trace import AllocationTrace


def test_the_peak_counts_what_exists_at_one_time_by_component() -> None:
    """Three tensors of 400 bytes in all, of which two exist at one time; a view has no storage of its own."""
    with AllocationTrace() as trace:
        trace.component = "one"
        first = torch.zeros(100)
        trace.component = "two"
        second = torch.zeros(100).view(10, 10)
        del first
        third = torch.zeros(100)
    assert trace.peak() == {"one": 400, "two": 400}
    assert second.numel() == third.numel() == 100
