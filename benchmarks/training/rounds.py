"""Trainers in processes of their own that take steps in turn, so that all meet the same state of the machine."""

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.training.contenders import PRODUCTS, Case
from benchmarks.training.shape import CONTEXT

ROOT = Path(__file__).parents[2]


def measure(folder: Path, names: list[str], case: Case, rounds: int) -> list[dict[str, Any]]:
    """Measure trainers side by side.

    Args:
        folder: The token files.
        names: Of `CONTENDERS`.
        case: What is measured.
        rounds: Steps of each; one before them is not counted.

    Returns:
        For each its tokens per second (median and best), those per CPU-second (which other work disturbs less),
        its FLOP/s, and at its best their share of the products alone at theirs.
    """
    workers = {name: _Worker(name, folder, case) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    processor_seconds: dict[str, list[float]] = {name: [] for name in names}
    try:
        flops = {name: worker.wait() for name, worker in workers.items()}
        for round_ in range(rounds + 1):
            for name, worker in workers.items():
                taken, processor = worker.step()
                if round_:
                    seconds[name].append(taken)
                    processor_seconds[name].append(processor)
    finally:
        for worker in workers.values():
            worker.close()
    batch = case.batch
    rate = max(flops[name] / min(seconds[name]) for name in PRODUCTS) * batch * CONTEXT
    results = []
    for name in names:
        median, best = (batch * CONTEXT / choose(seconds[name]) for choose in (statistics.median, min))
        results.append(
            {
                "trainer": name,
                **case._asdict(),
                "tokens_per_second": round(median, 1),
                "best_tokens_per_second": round(best, 1),
                "tokens_per_processor_second": round(batch * CONTEXT / statistics.median(processor_seconds[name]), 1),
                "gflops": round(median * flops[name] / 1e9, 1),
                "utilization": round(best * flops[name] / rate, 3),
            }
        )
    return results


class _Worker:
    """The parent's end of `benchmarks.training.worker`."""

    def __init__(self, name: str, folder: Path, case: Case) -> None:
        command = [sys.executable, "-m", "benchmarks.training.worker", name, str(folder), *map(str, case)]
        self._command = " ".join(command)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def wait(self) -> int:
        """Wait until it is ready; returns its FLOPs a token."""
        return int(self._answer())

    def step(self) -> tuple[float, float]:
        """Let it take a step; returns its seconds, and those of processors."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        seconds, processor_seconds = map(float, self._answer().split())
        return seconds, processor_seconds

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"this trainer ended: {self._command}")
        return line
