"""What weights of fewer bits cost and gain on the CPU: quality against float32, size, and the speed of a step.

`python -m benchmarks.quantization MODEL_FOLDER --text tinystories_valid.txt` runs the engine's step with every dtype
over the same windows of text and prints a table and one line of JSON. torch in float32 is what the Kullback-Leibler
divergence and the agreement on the likeliest token are measured against. Speeds are the best of several rounds in which
the dtypes take turns; they hold no sampling and no HTTP. `--shape FOLDER` times another model than the one whose
quality is measured.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, installed_versions
from services.inference.engine.cpu.panels import KINDS
from services.inference.engine.cpu.runner import CpuRunner
from services.inference.engine.cpu.team import ThreadTeam, available_cores
from services.inference.engine.cpu.weights import pack_weights
from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.step import BLOCK_SIZE, Segment
from shared.lm import ModelFolder, load_model_folder

MOST_DIVERGENCE, LEAST_AGREEMENT = 0.005, 0.96  # of int8
ROWS = (1, 8, 32)
POSITION = 128  # tokens before the one that is timed, in every row
LOGIT_ROWS = 64

Logits = NDArray[np.float32]


@dataclass
class Result:
    """What was measured of a dtype.

    Attributes:
        weight_mb: Bytes of all weights in memory, the embedding and norms in float32 among them.
        divergence: Mean Kullback-Leibler divergence of its next-token distribution from float32's, in nats.
        agreement: How often both have the same likeliest token.
        perplexity: Of the text.
        tokens_per_second: By the number of rows that decode; "prefill" is a prompt of `POSITION` tokens.
    """

    weight_mb: float
    divergence: float
    agreement: float
    perplexity: float
    tokens_per_second: dict[str, float]


class Quality:
    """Sums over the tokens of all windows."""

    def __init__(self) -> None:
        self.tokens = self.targets = self.agreeing = 0
        self.divergence = self.loss = 0.0

    def add(self, reference: Logits, found: Logits, tokens: NDArray[np.int64]) -> None:
        """Take in a window: both distributions after each of its tokens, [tokens, vocab_size]."""
        expected, actual = (torch.from_numpy(logits).double().log_softmax(-1) for logits in (reference, found))
        self.divergence += float((expected.exp() * (expected - actual)).sum())
        self.agreeing += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        self.loss -= float(actual[range(len(tokens) - 1), tokens[1:]].sum())
        self.tokens += len(tokens)
        self.targets += len(tokens) - 1


def main() -> int:
    """Measure and tell: 0 if int8 is as good as it has to be, else 1."""
    options = _options()
    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    folder = load_model_folder(options.folder, dtype=torch.float32)
    windows = _windows(folder, options.text.read_text(), options.windows)
    team = ThreadTeam(options.threads)
    qualities = _qualities(folder, windows, team)
    timed = folder if options.shape is None else load_model_folder(options.shape, dtype=torch.float32)
    sizes, speeds = _speeds(timed, team, options.rounds)
    team.close()
    results = {
        name: Result(
            weight_mb=round(sizes[name] / 1e6, 1),
            divergence=quality.divergence / quality.tokens,
            agreement=quality.agreeing / quality.tokens,
            perplexity=math.exp(quality.loss / quality.targets),
            tokens_per_second=speeds[name],
        )
        for name, quality in qualities.items()
    }
    _print_table(results)
    record = {
        "benchmark": "quantization",
        "machine": describe_machine(),
        "versions": installed_versions(["numba", "llvmlite", "torch"]),
        "threads": options.threads,
        "parameters": folder.config.num_parameters,
        "timed_parameters": timed.config.num_parameters,
        "tokens": sum(map(len, windows)),
        "results": {name: asdict(result) for name, result in results.items()},
    }
    print(json.dumps(record))
    int8 = results["int8"]
    return int(int8.divergence > MOST_DIVERGENCE or int8.agreement < LEAST_AGREEMENT)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="model folder whose quality is measured")
    parser.add_argument("--text", type=Path, required=True, help="text that the model was not trained on")
    parser.add_argument("--shape", type=Path, help="model folder whose speed is measured; default: the same")
    parser.add_argument("--windows", type=int, default=40, help="windows of the context's length")
    parser.add_argument("--rounds", type=int, default=10, help="times that each speed is measured")
    parser.add_argument("--threads", type=int, default=available_cores())
    return parser.parse_args()


def _windows(folder: ModelFolder, text: str, count: int) -> list[NDArray[np.int64]]:
    """The beginning of the text in windows of the context's length."""
    length = folder.config.context_length
    some = text[: count * length * 8]  # more than enough: a token has fewer characters
    tokens = np.array(folder.tokenizer.encode(some, allowed_special="all"), np.int64)
    windows = [tokens[begin : begin + length] for begin in range(0, len(tokens) - length + 1, length)][:count]
    if not windows:
        sys.exit(f"the text has {len(tokens)} tokens, a window {length}: give a longer one")
    return windows


def _runners(folder: ModelFolder, team: ThreadTeam) -> Iterator[tuple[str, int, CpuRunner]]:
    """A runner of each dtype, with the bytes of its weights."""
    config = folder.config
    blocks = -(-config.context_length // BLOCK_SIZE)
    for name, kind in KINDS.items():
        weights = pack_weights(config, folder.model.state_dict(), config.context_length, kind)
        runner = CpuRunner(
            config,
            weights,
            CpuSampler(config.vocab_size, LOGIT_ROWS, num_threads=team.num_threads, run=team.run),
            team,
            num_blocks=blocks * max(ROWS),
            max_rows=LOGIT_ROWS,
            max_step_tokens=max(config.context_length, *ROWS),
            context_length=config.context_length,
        )
        yield name, sum(array.nbytes for array in weights), runner


def _qualities(folder: ModelFolder, windows: Sequence[NDArray[np.int64]], team: ThreadTeam) -> dict[str, Quality]:
    qualities = {}
    references = [folder.model(torch.from_numpy(window)[None])[0].numpy() for window in windows]
    for name, _, runner in _runners(folder, team):
        quality = qualities[name] = Quality()
        for window, reference in zip(windows, references, strict=True):
            blocks = range(-(-len(window) // BLOCK_SIZE))
            runner.forward([Segment(window.tolist(), 0, blocks)])
            places = range(len(window))
            parts = [places[first : first + LOGIT_ROWS] for first in range(0, len(window), LOGIT_ROWS)]
            quality.add(reference, np.concatenate([runner.logits(part).copy() for part in parts]), window)
    return qualities


def _speeds(folder: ModelFolder, team: ThreadTeam, rounds: int) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """Bytes of weights, and tokens a second of each dtype."""
    sizes, runners = {}, {}
    for name, size, runner in _runners(folder, team):
        sizes[name], runners[name] = size, runner
    position = min(POSITION, folder.config.context_length - 1)
    blocks = position // BLOCK_SIZE + 1
    tables = [range(row * blocks, (row + 1) * blocks) for row in range(max(ROWS))]
    steps = {str(rows): [Segment([1], position, table) for table in tables[:rows]] for rows in ROWS}
    steps["prefill"] = [Segment([1] * position, 0, tables[0])]
    best = {name: dict.fromkeys(steps, math.inf) for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            for step, segments in steps.items():
                for _ in range(3):
                    start = time.perf_counter()
                    ends = runner.forward(segments)
                    runner.logits([end - 1 for end in ends])
                    best[name][step] = min(best[name][step], time.perf_counter() - start)
    tokens = {step: sum(len(segment.tokens) for segment in segments) for step, segments in steps.items()}
    return sizes, {
        name: {step: round(tokens[step] / seconds) for step, seconds in of_dtype.items()}
        for name, of_dtype in best.items()
    }


def _print_table(results: dict[str, Result]) -> None:
    print("| dtype | weights, MB | KL to float32 | same top token | perplexity | 1 row | 8 | 32 | prefill, tokens/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, result in results.items():
        quality = f"{result.divergence:.1e} | {result.agreement:.2%} | {result.perplexity:.4f}"
        speeds = " | ".join(f"{speed:,.0f}" for speed in result.tokens_per_second.values())
        print(f"| {name} | {result.weight_mb:.1f} | {quality} | {speeds} |")


if __name__ == "__main__":
    sys.exit(main())
