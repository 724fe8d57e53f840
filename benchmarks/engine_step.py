"""The engine's step on the CPU, without HTTP and without sampling: `python -m benchmarks.engine_step`.

A model of the shape of CS336's TinyStories with random weights decodes a token of 1, 8 and 32 rows at position 127,
and reads prompts. Beside it, the same products of activations and weights by torch's packed oneDNN operator. All take
turns; the table gives the best and the median turn, and a line of JSON follows.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.host import describe_machine, installed_versions
from services.inference.engine.runner.cpu.kernels import intrinsics
from services.inference.engine.runner.cpu.kernels.layout import Rows, Threads
from services.inference.engine.runner.cpu.kernels.linear import WRITE, linear
from services.inference.engine.runner.cpu.kernels.phases import PHASE_WORDS
from services.inference.engine.runner.cpu.panels import KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.types import BLOCK_SIZE
from shared.lm import ModelConfig, Transformer

CONFIG = ModelConfig(
    vocab_size=10_000,
    context_length=256,
    d_model=512,
    num_layers=4,
    num_heads=16,
    num_kv_heads=16,
    head_dim=32,
    d_ff=1344,
    tie_embeddings=False,
)
MAX_ROWS, MAX_STEP_TOKENS, POSITION = 32, 512, 127
PROMPTS = {"8 prompts of 64": (8, 64), "1 prompt of 256": (1, 256)}
MATRICES = {"queries, keys and values": 0, "output of attention": 1, "feed-forward, down": 3, "logits": -1}
PRODUCT_ROWS = (1, 8, 32, 512)

Contest = dict[str, tuple[Callable[[], object], float]]
"""What takes turns, and how many tokens (or operations) a turn makes."""


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--dtype", nargs="+", choices=KINDS, default=["float32"])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the two tables")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Transformer(CONFIG).eval()
    results = {}
    steps: Contest = {}
    for dtype in options.dtype:
        for threads in dict.fromkeys(options.threads):
            steps |= _steps(_runner(model, KINDS[dtype], threads), f"{dtype}, threads {threads}")
    print("| step | best, ms | median, ms | tokens/s, best | tokens/s, median |\n| --- | --- | --- | --- | --- |")
    for name, seconds in take_turns(steps, options.seconds).items():
        best, median, tokens = min(seconds), statistics.median(seconds), steps[name][1]
        print(f"| {name} | {best * 1e3:.2f} | {median * 1e3:.2f} | {tokens / best:,.0f} | {tokens / median:,.0f} |")
        results[name] = {"tokens/s": tokens / best, "median": tokens / median}
    threads = options.threads[-1]
    torch.set_num_threads(threads)
    products = _products(model, _runner(model, intrinsics.FLOAT32, threads))
    print(f"\n| product, float32, threads {threads} | best, GFLOP/s | median, GFLOP/s |\n| --- | --- | --- |")
    for name, seconds in take_turns(products, options.seconds).items():
        best, median = (products[name][1] / value / 1e9 for value in (min(seconds), statistics.median(seconds)))
        print(f"| {name} | {best:.0f} | {median:.0f} |")
        results[name] = {"GFLOP/s": best, "median": median}
    about = {"machine": describe_machine(), "versions": installed_versions(["numba", "llvmlite", "torch"])}
    print("\n" + json.dumps(about | {"results": results}))


def _runner(model: Transformer, kind: int, threads: int) -> CpuRunner:
    thread_pool = KernelThreadPool(threads)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return CpuRunner(
        CONFIG,
        pack_weights(CONFIG, tensors, kind),
        CpuSampler(CONFIG.vocab_size, MAX_ROWS, num_threads=threads, run=thread_pool.run),
        thread_pool,
        num_blocks=MAX_ROWS * CONFIG.context_length // BLOCK_SIZE,
        num_slots=MAX_ROWS,
        max_step_tokens=MAX_STEP_TOKENS,
        context_length=CONFIG.context_length,
    )


def _steps(runner: CpuRunner, name: str) -> Contest:
    blocks = np.arange(runner.num_blocks).reshape(MAX_ROWS, -1).tolist()

    def run(segments: list[Segment]) -> Callable[[], object]:
        return lambda: runner.logits([end - 1 for end in runner.forward(segments)])

    steps: Contest = {}
    for rows in (1, 8, 32):
        segments = [Segment([row], POSITION, blocks[row]) for row in range(rows)]
        steps[f"{name}: {rows} rows"] = run(segments), rows
    for prompts, (rows, tokens) in PROMPTS.items():
        segments = [Segment(list(range(tokens)), 0, blocks[row]) for row in range(rows)]
        steps[f"{name}: {prompts}"] = run(segments), rows * tokens
    return steps


def _products(model: Transformer, runner: CpuRunner) -> Contest:
    """The same products by our kernels and by oneDNN, with weights that it has packed for the number of rows."""
    layer = model.model.layers[0]
    weights = [
        torch.cat([layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight]),
        layer.self_attn.o_proj.weight,
        layer.mlp.down_proj.weight,
        model.lm_head.weight,
    ]
    contest: Contest = {}
    for (name, number), weight in zip(MATRICES.items(), weights, strict=True):
        outputs, inputs = weight.shape
        for rows in PRODUCT_ROWS:
            operations = 2.0 * rows * inputs * outputs
            contest[f"{name}, {rows} rows: ours"] = _our_product(runner, number, inputs, outputs, rows), operations
            contest[f"{name}, {rows} rows: oneDNN"] = _their_product(weight.detach(), rows), operations
    return contest


def _our_product(runner: CpuRunner, number: int, inputs: int, outputs: int, rows: int) -> Callable[[], object]:
    thread_pool = runner._thread_pool
    stride, out_stride = (-(-width // intrinsics.PANEL) * intrinsics.PANEL + 16 for width in (inputs, outputs))
    x = Rows(np.random.default_rng(0).normal(size=rows * stride).astype(np.float32), stride)
    out = Rows(np.zeros(rows * out_stride, np.float32), out_stride)
    phases = np.zeros(PHASE_WORDS, np.int64)
    calls = [
        linear.prepare(
            Threads(thread, thread_pool.num_threads, phases),
            0,
            runner._weights,
            number % (4 * CONFIG.num_layers + 1),
            x,
            rows,
            runner._work,
            out,
            WRITE,
        )
        for thread in range(thread_pool.num_threads)
    ]

    def run() -> None:
        phases[:] = 0
        thread_pool.run(calls)

    return run


def _their_product(weight: torch.Tensor, rows: int) -> Callable[[], object]:
    x = torch.randn(rows, weight.shape[1])
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def take_turns(contest: Contest, seconds: float) -> dict[str, list[float]]:
    """Seconds of each turn; each contestant first runs once to warm up, and then at least twice."""
    taken: dict[str, list[float]] = {name: [] for name in contest}
    with torch.inference_mode():
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(next(iter(taken.values()))) < 2:
            for name, (run, _) in contest.items():
                run()
                start = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    main()
