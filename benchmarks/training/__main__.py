"""The command line of the benchmark."""

import argparse
import importlib.util
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.host import describe_machine, installed_versions
from benchmarks.training import tables
from benchmarks.training.contenders import CONTENDERS, Case
from benchmarks.training.data import make_data
from benchmarks.training.overhead import data_and_logging, start_up
from benchmarks.training.rounds import measure
from benchmarks.training.targets import judge
from shared.system.errors import how_to_install


def main() -> int:
    """Measure, report, and compare with the targets: 0 if all are met, else 1."""
    options = _options()
    # Processes that wait their turn must not spin on a core.
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "passive"}
    names = [name for name in CONTENDERS if _has_package(name)]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name:
        folder = make_data(Path(name))
        for batch in options.batches:
            for compiled in (False, True) if options.compile else (False,):
                results += measure(folder, names, Case(batch, compiled, options.dtype), options.rounds)
        overhead = data_and_logging(folder, options.batches[0], results)
        seconds = start_up(folder)
    verdicts = judge(results, overhead, seconds)
    report = {
        "machine": describe_machine(),
        "versions": installed_versions(["torch", "transformers"]),
        "command": shlex.join(["python", "-m", "benchmarks.training", *sys.argv[1:]]),
        "threads": options.threads,
        "results": results,
        "data_and_logging": overhead,
        "start_up_seconds": seconds,
        "verdicts": [verdict._asdict() for verdict in verdicts],
    }
    print(tables.render(report), end="\n\n")
    print(json.dumps(report))
    return 0 if all(verdict.met for verdict in verdicts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description="Training steps beside peers'")
    parser.add_argument("--quick", action="store_true", help="batch 8, eager, few rounds: two minutes")
    parser.add_argument("--batches", type=_at_least_one, nargs="+", help="windows of a step; 8 and 32 by default")
    parser.add_argument(
        "--rounds", type=_at_least_one, help="steps of each trainer, one after the other in turn; 9 by default"
    )
    parser.add_argument(
        "--threads", type=_at_least_one, default=os.cpu_count(), help="of every trainer; all processors by default"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of products")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    options = parser.parse_args()
    options.batches = options.batches or ([8] if options.quick else [8, 32])
    options.rounds = options.rounds or (5 if options.quick else 9)
    options.compile = options.compile and not options.quick
    return options


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _has_package(name: str) -> bool:
    if not name.startswith("transformers") or importlib.util.find_spec("transformers"):
        return True
    print(f"transformers is left out, since it is not installed: {how_to_install('bench')}", file=sys.stderr)
    return False


if __name__ == "__main__":
    raise SystemExit(main())
