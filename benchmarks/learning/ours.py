"""The run of our default recipe: the trainer's own command, with nothing but the shape set."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.learning import shape
from benchmarks.learning.curves import Curve, Point


def train(data: Path, steps: int, evaluations: int) -> Curve:
    """Train with `python -m trainer train`, a process of its own.

    The clock is the sum of what each step took by metrics.jsonl: like the peers', it stops while evaluating.
    """
    with tempfile.TemporaryDirectory(prefix="ownlm-learning-") as folder:
        output = Path(folder) / "run"
        options = {
            "data": data,
            "output": output,
            "d-model": shape.D_MODEL,
            "num-layers": shape.NUM_LAYERS,
            "num-heads": shape.NUM_HEADS,
            "d-ff": shape.D_FF,
            "context-length": shape.CONTEXT_LENGTH,
            "max-steps": steps,
            "log-interval": 1,
            "eval-interval": -(-steps // evaluations),
            "eval-tokens": 0,
            "sample-interval": 0,
            "checkpoint-interval": 0,
            "device": "cpu",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "trainer", "train", *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        lines = (output / "metrics.jsonl").read_text("utf-8").splitlines()
        parameters = json.loads((output / "run.json").read_text("utf-8"))["parameters"]
    return Curve("ours", parameters, points([json.loads(line) for line in lines]))


def points(records: list[dict[str, Any]]) -> list[Point]:
    """The evaluations among the per-step records of metrics.jsonl."""
    curve, tokens, seconds = [], 0, 0.0
    for record in records:
        if "tokens_per_second" in record:
            seconds += (record["tokens"] - tokens) / record["tokens_per_second"]
            tokens = record["tokens"]
        elif "validation_loss" in record:
            curve.append(Point(tokens, seconds, record["validation_loss"], record["bits_per_byte"]))
    return curve
