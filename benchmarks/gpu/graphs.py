"""The graphs of a step: how many kernels each has, how long it takes, and whether a step is graphs alone."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.gpu.answers import new_model, new_runner
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.runner.torch.runner import TorchRunner
from services.inference.engine.types import BLOCK_SIZE, SequenceRequest
from shared.lm import ModelConfig, SamplingParams

_REPEATS = 20


class Step:
    """A runner with rows at some position, whose steps are measured.

    Args:
        config: The model.
        device: Of the runner.
        dtype: Of the weights.
        rows: Sequences that decode.
        position: Of all of them.
    """

    def __init__(self, config: ModelConfig, device: str, dtype: torch.dtype, *, rows: int, position: int) -> None:
        self._blocks = -(-(position + 2) // BLOCK_SIZE)
        self.runner = new_runner(new_model(config, device, dtype), rows=rows, num_blocks=rows * self._blocks)
        self._rows, self._position = rows, position

    def open(self, **params: float) -> None:
        """Let all rows sample with these parameters."""
        for row in range(self._rows):
            sampling = SamplingParams(**params, seed=row)  # type: ignore[arg-type]
            self.runner.open_slot(row, SequenceRequest((1,), sampling, 10, frozenset()))

    def decode(self, rows: int) -> None:
        """One token of so many rows."""
        self.runner.run([Segment([5], self._position, self._blocks_of(row), (row,)) for row in range(rows)])

    def prompt(self, length: int) -> None:
        """A prompt of one row, that a token is sampled after."""
        self.runner.run([Segment([5] * length, 0, self._blocks_of(0), (0,))])

    def milliseconds(self, step: Callable[[], None]) -> float:
        """The median time of a step, host and device, which ends with the tokens on the host."""
        times = []
        for _ in range(_REPEATS + 3):
            begun = time.perf_counter()
            step()
            times.append(time.perf_counter() - begun)
        return 1000 * statistics.median(times[3:])

    def _blocks_of(self, row: int) -> list[int]:
        return list(range(row * self._blocks, (row + 1) * self._blocks))


def device_microseconds(run: Callable[[], None], device: torch.device) -> float:
    """The mean time on the device of what is run many times in a row."""
    run()
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(3):
            run()
        return 1e6 * (time.perf_counter() - begun) / 3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_REPEATS):
        run()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / _REPEATS


def kernels(run: Callable[[], None]) -> int | None:
    """How many kernels run on the device; None where there is none."""
    if not torch.cuda.is_available():
        return None
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


@contextmanager
def counted_replays() -> Iterator[list[int]]:
    """Counts how often graphs are replayed that are captured within, where there are graphs."""
    counts, replay = [0], torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        counts[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


def replays_of_a_step(config: ModelConfig, device: str, dtype: torch.dtype, **params: float) -> int:
    """How many graphs a step of 4 rows and a prompt are together.

    Raises:
        RuntimeError: An operation of torch waited for the GPU.
    """
    with counted_replays() as replays:
        step = Step(config, device, dtype, rows=4, position=100)
        with refused_waits():
            step.open(**params)
            step.decode(4)
            step.prompt(60)
    return replays[0]


@contextmanager
def refused_waits() -> Iterator[None]:
    """Raises where an operation of torch waits for the GPU without being asked to."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def graphs_of(runner: TorchRunner) -> Iterator[tuple[str, Callable[[], None]]]:
    """The graphs of a runner by name."""
    for tile, run in runner.decode_tiles:
        yield f"{tile.shape.num_tokens} generated tokens", run
    for tile, run in runner.prompt_tiles:
        yield f"{tile.shape.num_tokens} prompt tokens", run
    for plan, run in runner.sample_graphs.items():
        kind = ("filtered" if plan.num_filtered else "penalties") if plan.has_state else "temperature"
        yield f"draw, {kind if plan.draws else 'greedy'}" + f" {plan.num_filtered}" * bool(plan.num_filtered), run
