"""Functions of fixed buffers, captured once as CUDA graphs and replayed."""

from collections.abc import Callable

import torch


class Graphs:
    """Captures functions that read and write the same tensors each time, so that a call is one launch.

    All graphs are captured on one side stream and take their memory from one pool: they run one after another, and what
    a graph leaves for others lies in tensors that were allocated before.

    Args:
        device: Where the tensors are; on other devices than CUDA functions are called without a graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what runs the function."""
        if self._device.type != "cuda":
            return function
        # Libraries initialize and kernels compile in the first call, which must not be captured.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        return graph.replay
