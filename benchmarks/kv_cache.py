"""The engine's step over keys and values of each kind, at long contexts: `python -m benchmarks.kv_cache`.

A model of random weights decodes a token of some rows at some positions, with the KV cache in float32, bfloat16 and
float16; all take turns. The table gives the median turn, and what a full cache takes; a line of JSON follows.
`benchmarks.quantization` says what fewer bits cost.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.engine_step import CONFIG, Contest, take_turns
from benchmarks.host import describe_machine, installed_versions
from services.inference.engine.runner.cpu.kernels.layout import Weights
from services.inference.engine.runner.cpu.panels import KINDS, KV_KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.sizes import block_bytes
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.types import BLOCK_SIZE, num_blocks_of
from shared.lm import ModelConfig, Transformer

SHAPES = {
    "cs336": dataclasses.replace(CONFIG, context_length=2048),
    "smollm2-135m": ModelConfig(
        vocab_size=49_152,
        context_length=2048,
        d_model=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        d_ff=1536,
    ),
}


def main() -> int:
    """Measure, and print the table; 1 if a cache of 16 bits is slower than float32 where the cache is read most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="cs336")
    parser.add_argument("--dtype", choices=KINDS, default="float32", help="of the weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--positions", type=int, nargs="+", default=[127, 1023])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    config = SHAPES[options.shape]
    if max(options.positions) >= config.context_length:
        parser.error(f"positions of this shape end at {config.context_length - 1}")
    model = Transformer(config).eval()
    weights = pack_weights(config, {name: x.numpy() for name, x in model.state_dict().items()}, KINDS[options.dtype])
    cases = [(rows, position) for position in options.positions for rows in options.rows]
    contest: Contest = {}
    for name, kind in KV_KINDS.items():
        contest |= _steps(_runner(config, weights, kind, options), name, cases)
    turns = take_turns(contest, options.seconds)
    taken = {name: statistics.median(seconds) for name, seconds in turns.items()}
    print(f"| step, ms, medians of {len(turns[min(turns)])} | {' | '.join(KV_KINDS)} |")
    print(f"| --- |{' --- |' * len(KV_KINDS)}")
    for rows, position in cases:
        of_case = [taken[_name(rows, position, name)] for name in KV_KINDS]
        print(f"| {rows} rows, position {position} | {' | '.join(f'{seconds * 1e3:.2f}' for seconds in of_case)} |")
    full = [num_blocks_of(config.context_length) * block_bytes(config, kind) for kind in KV_KINDS.values()]
    print(f"| a context of {config.context_length:,}, MB | {' | '.join(f'{size / 1e6:.1f}' for size in full)} |")
    about = {"machine": describe_machine(), "versions": installed_versions(["numba", "llvmlite", "numpy"])}
    print("\n" + json.dumps(about | {"options": vars(options), "milliseconds": {k: v * 1e3 for k, v in taken.items()}}))
    of_most = {name: taken[_name(max(options.rows), max(options.positions), name)] for name in KV_KINDS}
    return int(max(of_most.values()) > of_most["float32"])


def _name(rows: int, position: int, kv_dtype: str) -> str:
    return f"{rows} rows, position {position}, {kv_dtype}"


def _runner(config: ModelConfig, weights: Weights, kv_kind: int, options: argparse.Namespace) -> CpuRunner:
    thread_pool, rows = KernelThreadPool(options.threads), max(options.rows)
    blocks = num_blocks_of(max(options.positions) + 1)
    runner = CpuRunner(
        config,
        weights,
        CpuSampler(config.vocab_size, rows, num_threads=options.threads, run=thread_pool.run),
        thread_pool,
        num_blocks=rows * blocks,
        num_slots=rows,
        max_step_tokens=rows,
        context_length=blocks * BLOCK_SIZE,
        kv_kind=kv_kind,
    )
    # Memory that was never written to is one page of zeros for the processor.
    runner.block_memory.reserve(runner.num_blocks, wait=True)
    if runner.block_memory.num_ready < runner.num_blocks:
        sys.exit("too little memory for these rows and positions")
    return runner


def _steps(runner: CpuRunner, name: str, cases: Sequence[tuple[int, int]]) -> Contest:
    tables = np.arange(runner.num_blocks).reshape(runner.num_slots, -1).tolist()

    def step(rows: int, position: int) -> Callable[[], object]:
        segments = [Segment([row], position, tables[row]) for row in range(rows)]
        return lambda: runner.logits([end - 1 for end in runner.forward(segments)])

    return {_name(rows, position, name): (step(rows, position), rows) for rows, position in cases}


if __name__ == "__main__":
    sys.exit(main())
