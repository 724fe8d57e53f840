"""The command line of the benchmark of learning."""

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_folder
from benchmarks.learning import data, tables
from benchmarks.learning.curves import Curve, Point
from shared.system.errors import how_to_install

CONTESTANTS = ("ours", "ours in half the time", "nanogpt", "transformers-tuned", "transformers")
_CALIBRATION_STEPS = 30


def main() -> int:
    """Train all contestants for the same time, one after another; 0 if ours needs at most half of each peer's."""
    options = _options()
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory(prefix="ownlm-learning-") as folder:
        tokens = data.check(options.data) if options.data else data.prepare(Path(folder))
        minutes = 1.0 if options.quick else options.minutes
        evaluations = 3 if options.quick else options.evaluations
        curves = []
        for name in _installed(options.only):
            share = 0.5 if name == "ours in half the time" else 1.0
            end = _run(name, tokens, _CALIBRATION_STEPS, 1, environment).end
            steps = round(share * minutes * 60 * _CALIBRATION_STEPS / end.seconds)
            curves.append(_run(name, tokens, steps, evaluations, environment))
            print(f"{name}: {curves[-1].end}", file=sys.stderr, flush=True)
    report = {
        "machine": describe_machine(),
        "versions": installed_versions(("torch", "transformers", "accelerate", "numpy")),
        "command": shlex.join(["python", "-m", "benchmarks.learning", *sys.argv[1:]]),
        "curves": [asdict(curve) for curve in curves],
    }
    print(tables.summary(curves), tables.points(curves), json.dumps(report), sep="\n\n")
    return 0 if _target_met(curves) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description="Bits per byte against time")
    parser.add_argument("--minutes", type=float, default=20, help="of training for each contestant")
    parser.add_argument("--evaluations", type=int, default=10, help="on all validation tokens, on the way of each run")
    parser.add_argument("--quick", action="store_true", help="one minute each, with three evaluations")
    parser.add_argument("--threads", type=int, default=2, help="of the processor")
    parser.add_argument(
        "--data", type=existing_folder, help="token files with a vocabulary of 4,096, TinyStories by default"
    )
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="contestants to run")
    return parser.parse_args()


def _installed(names: Sequence[str]) -> list[str]:
    """The contestants that can run, and a word on those whose packages are missing."""
    packages = [package for package in ("transformers", "accelerate") if importlib.util.find_spec(package) is None]
    missing = [name for name in names if packages and name.startswith("transformers")]
    if missing:
        reported = f"skipped, since {' and '.join(packages)} is not installed ({how_to_install('bench')})"
        print(f"{reported}: {', '.join(missing)}", file=sys.stderr)
    return [name for name in names if name not in missing]


def _run(name: str, tokens: Path, steps: int, evaluations: int, environment: dict[str, str]) -> Curve:
    """One contestant's run, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.learning.worker", name, str(tokens), str(steps), str(evaluations)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed")
    content = json.loads(done.stdout.splitlines()[-1])
    return Curve(name, content["parameters"], [Point(*point) for point in content["points"]])


def _target_met(curves: list[Curve]) -> bool:
    """Whether ours, with a schedule made for half of the time, ends as low as each peer after all of it."""
    ours = {curve.name: curve for curve in curves}.get("ours in half the time")
    peers = [curve for curve in curves if not curve.name.startswith("ours")]
    return ours is not None and all(ours.end.bits_per_byte <= peer.end.bits_per_byte for peer in peers)


if __name__ == "__main__":
    sys.exit(main())
