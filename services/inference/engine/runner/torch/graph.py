"""A function of fixed buffers, captured once as a CUDA graph and replayed."""

from collections.abc import Callable

import torch
from torch import Tensor


class Captured:
    """Runs a function that reads and writes the same tensors each time: on CUDA in one launch.

    Args:
        function: Takes nothing, and returns what it computes.
        device: Where its tensors are; on other devices than CUDA the function is called without a graph.
    """

    def __init__(self, function: Callable[[], Tensor], device: torch.device) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture(device)

    def __call__(self) -> Tensor:
        """Return the function's result; on CUDA the next call overwrites it."""
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._output

    def _capture(self, device: torch.device) -> None:
        # Libraries initialize in the first call, which must not be captured.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._function()
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = self._function()
