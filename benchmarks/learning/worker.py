"""One run in a process of its own: `python -m benchmarks.learning.worker CONTESTANT DATA STEPS EVALUATIONS`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.learning import nanogpt, ours, transformers_trainer
from benchmarks.learning.curves import Curve
from trainer.tokens.dataset import open_training_data


def main() -> None:
    """Print the curve as JSON in the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant")
    parser.add_argument("data", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("evaluations", type=int)
    options = parser.parse_args()
    print(json.dumps(asdict(_train(options.contestant, options.data, options.steps, options.evaluations))))


def _train(contestant: str, folder: Path, steps: int, evaluations: int) -> Curve:
    if contestant.startswith("ours"):
        return ours.train(folder, steps, evaluations)
    data = open_training_data(folder)
    if contestant == "nanogpt":
        return nanogpt.train(data, steps, evaluations)
    return transformers_trainer.train(data, steps, evaluations, tuned=contestant == "transformers-tuned")


if __name__ == "__main__":
    main()
