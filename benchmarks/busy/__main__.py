"""Speed beside other processes that compute: `python -m benchmarks.busy`.

Training, `evaluate`, steps of the engine and encoding, each on all processors, beside processes that do nothing but
count. Where P processors have P threads of ours and H others to run, our fair share is P / (P + H) of the idle speed.
OMP_WAIT_POLICY, GOMP_SPINCOUNT and KMP_BLOCKTIME are passed on: set them to compare.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.busy.inputs import make_inputs
from benchmarks.busy.worker import WORK
from benchmarks.host import describe_machine, installed_versions
from benchmarks.report import table
from shared.system.cpu_count import available_processors

_MOST_TIMES_SLOWER = 2.0
_SETTLING_SECONDS = 1.0  # threads notice what runs beside them in half of that
_COUNT = "while True: pass"


def main() -> None:
    """Measure, and print a table and a line of JSON; exit code 1 if some work gets less than half of its share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=WORK, default=[*WORK])
    parser.add_argument("--others", type=int, nargs="+", default=[0, 1, 2, 4], help="processes that compute beside it")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 1.0, 1
    others = sorted({0, *options.others})
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder))
        for name in options.work:
            with _worker(name, folder) as worker:
                results[name] = _rates(worker, others, options.seconds, options.rounds)
    slower = {name: {h: _times_slower(rates, h) for h in rates if h} for name, rates in results.items()}
    header = ["work", "idle, a second", *(f"beside {h}: a second, times below its share" for h in others if h)]
    rows = [
        [name, f"{rates[0]:,.0f}", *(f"{rates[h]:,.0f}, {slower[name][h]:.2f}" for h in rates if h)]
        for name, rates in results.items()
    ]
    print(table(header, rows))
    about = {"machine": describe_machine(), "versions": installed_versions(["torch", "numba"])}
    print("\n" + json.dumps(about | {"rates": results, "times below the fair share": slower}))
    sys.exit(any(times > _MOST_TIMES_SLOWER for of_work in slower.values() for times in of_work.values()))


def _times_slower(rates: dict[int, float], others: int) -> float:
    processors = available_processors()
    return rates[0] * processors / (processors + others) / rates[others]


def _rates(worker: "subprocess.Popen[str]", others: list[int], seconds: float, rounds: int) -> dict[int, float]:
    """The median rate beside each number of other processes; all take turns."""
    rates: dict[int, list[float]] = {count: [] for count in others}
    for _ in range(rounds):
        for count in others:
            with _hogs(count):
                _rate(worker, _SETTLING_SECONDS)
                rates[count].append(_rate(worker, seconds))
    return {count: statistics.median(of_count) for count, of_count in rates.items()}


def _rate(worker: "subprocess.Popen[str]", seconds: float) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(seconds, file=worker.stdin, flush=True)
    return float(worker.stdout.readline())


@contextmanager
def _hogs(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-S", "-c", _COUNT]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _worker(name: str, folder: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.busy.worker", name, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the work {name} failed; run: python -m benchmarks.busy.worker {name} {folder}")
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
