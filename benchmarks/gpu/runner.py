"""The engine's runner on the device: isolation, equality with the CPU, graphs and waits, kernels and times, faults."""

import argparse
import time
import traceback
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu import answers, faults, graphs
from benchmarks.gpu.options import part_parser
from benchmarks.gpu.rows import Row, note, report
from benchmarks.gpu.shapes import CHECKED, TINY, measured
from services.inference.engine.runner.torch.selector import triton_unavailable_reason
from shared.lm import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TARGET_MICROSECONDS = 150.0  # of a step of one stream of the 22.7M model, in bfloat16, on an H100
_SAMPLING = {"greedy": {"temperature": 0.0}, "top_p": {"temperature": 0.8, "top_p": 0.95}}
_LEAST_AGREEMENT = {"float32": 0.99, "bfloat16": 0.5}


def main() -> None:
    """All checks, the most important first."""
    options = part_parser(__doc__).parse_args()
    end = time.monotonic() + options.seconds
    reason = triton_unavailable_reason(torch.device(options.device))
    report(Row("runner", "operations", "kernels" if reason is None else f"plain torch: {reason}"))
    checked = TINY if options.quick else CHECKED
    for what, check in _checks(options, checked):
        if time.monotonic() + 5 > end:
            report(Row("runner", what, "skipped: no time was left", met=False))
            continue
        try:
            check()
        except Exception as error:  # the next check may still succeed
            note(traceback.format_exc())
            report(
                Row("runner", what, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}", met=False)
            )


def _checks(options: argparse.Namespace, checked: ModelConfig) -> list[tuple[str, Callable[[], None]]]:
    checks: list[tuple[str, Callable[[], None]]] = []
    for dtype in DTYPES:
        checks.append((f"greedy text beside the CPU's, {dtype}", partial(_agreement, checked, options, dtype)))
        checks += [
            (f"isolation of {rows} rows, {dtype}", partial(_isolation, checked, options, dtype, rows))
            for rows in ((5,) if options.quick else (5, 32, 64))
        ]
    checks += [(f"a step of {dtype}", partial(_graphs_and_waits, checked, options, dtype)) for dtype in DTYPES]
    for name, config in measured(quick=options.quick).items():
        checks += [
            (f"times of {name}, {dtype}", partial(_times, name, config, options, dtype)) for dtype in reversed(DTYPES)
        ]
    checks.append(("device-side assertion", partial(_fault, checked, options)))
    return checks


def _isolation(config: ModelConfig, options: argparse.Namespace, dtype: str, rows: int) -> None:
    model = answers.new_model(config, options.device, DTYPES[dtype])
    same, seen = answers.isolation(model, rows=rows, new_tokens=64)
    report(Row("runner", f"isolation of {rows} rows, {dtype}", seen, same))


def _agreement(config: ModelConfig, options: argparse.Namespace, dtype: str) -> None:
    new_tokens = 8 if options.quick else 32
    share, seen = answers.agreement(config, options.device, DTYPES[dtype], new_tokens=new_tokens)
    report(Row("runner", f"greedy text beside the CPU's, {dtype}", seen, share >= _LEAST_AGREEMENT[dtype], share))


def _graphs_and_waits(config: ModelConfig, options: argparse.Namespace, dtype: str) -> None:
    """That a step is two launches, and waits for nothing but its tokens."""
    for params in ({"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.9}):
        replays = graphs.replays_of_a_step(config, options.device, DTYPES[dtype], **params)
        what = f"graphs of a step and a prompt, {dtype}, {params}"
        if options.device == "cuda":
            report(Row("runner", what, f"{replays} replayed, nothing waited", replays == 4))
        else:
            report(Row("runner", what, "ran without graphs: a CPU has none"))


def _times(name: str, config: ModelConfig, options: argparse.Namespace, dtype: str) -> None:
    rows = 4 if options.quick else 32
    step = graphs.Step(config, options.device, DTYPES[dtype], rows=rows, position=200)
    step.open(temperature=0.0)
    step.decode(rows)
    with torch.inference_mode():
        for what, run in graphs.graphs_of(step.runner):
            micros, count = graphs.device_microseconds(run, torch.device(options.device)), graphs.kernels(run)
            text = f"{micros:,.0f} µs" if count is None else f"{micros:,.0f} µs, {count} kernels"
            report(Row("runner", f"{name} {dtype}: {what}", text, value=micros))
    for kind, params in _SAMPLING.items():
        step.open(**params)
        for decoding in (1, rows):
            milliseconds = step.milliseconds(partial(step.decode, decoding))
            is_target = (name, dtype, decoding, kind) == ("22.7M", "bfloat16", 1, "greedy")
            met = 1000 * milliseconds < _TARGET_MICROSECONDS if is_target else None
            what = f"{name} {dtype}: step of {decoding}, {kind}, host and device"
            report(Row("runner", what, f"{milliseconds:.3f} ms", met, milliseconds))


def _fault(config: ModelConfig, options: argparse.Namespace) -> None:
    restarted, seen = faults.restart_after_fault(config, options.device, options.work)
    what = "device-side assertion" if options.device == "cuda" else "killed process"
    report(Row("runner", f"{what}, and the process after it", seen, restarted))


if __name__ == "__main__":
    main()
