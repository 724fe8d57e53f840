"""Training on the device: speed, share of the peak, memory beside the estimate, resuming, loss beside the CPU's."""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.environment import ROOT
from benchmarks.gpu.options import part_parser
from benchmarks.gpu.rows import Row, report
from benchmarks.gpu.shapes import TINY, measured
from benchmarks.serving.model import tokenizer_of
from shared.lm import ModelConfig
from trainer.estimate.gpus import GPUS
from trainer.runs.results import RunResults, read_run
from trainer.settings.encode import EncodeSettings
from trainer.tokens.encode import encode_files

_BATCHES = {"22.7M": (128, 256), "135M": (32, 512), "tiny": (4, 32)}  # windows, and tokens of each
_TOKENS_PER_SECOND = 40e6 / 240  # 40 million tokens of the 22.7M model in 4 minutes, on an H100
_SHARE_OF_PEAK = 0.45  # of the 135M shape
_LOSS_TOLERANCE = 0.01
_ESTIMATE_TOLERANCE = 0.15


def main() -> None:
    """The runs, the most important first."""
    options = part_parser(__doc__).parse_args()
    end = time.monotonic() + options.seconds
    for what, run in _runs(options):
        if time.monotonic() + 10 > end and not options.quick:
            report(Row("training", what, "skipped: no time was left", met=False))
            continue
        try:
            run()
        except Exception as error:  # the next run may still succeed
            report(
                Row("training", what, f"failed: {type(error).__name__}: {' '.join(str(error).split())[-300:]}", False)
            )


def _runs(options: argparse.Namespace) -> list[tuple[str, Callable[[], None]]]:
    shapes = measured(quick=options.quick)
    plain = [(f"{name}, bfloat16", partial(_speed, name, config, options)) for name, config in shapes.items()]
    small = next(iter(shapes))
    return [
        *plain,
        (f"{small}, --compile", partial(_speed, small, shapes[small], options, compiled=True)),
        ("--deterministic, resumed", partial(_resume, options)),
        ("loss beside the CPU's", partial(_loss, options)),
    ]


def _speed(name: str, config: ModelConfig, options: argparse.Namespace, *, compiled: bool = False) -> None:
    batch, context = _BATCHES[name]
    steps = 8 if options.quick else 60
    run = options.work / f"{name}{'-compiled' * compiled}"
    arguments = ["--batch-size", batch, "--context-length", context, "--max-steps", steps, "--dtype", "bfloat16"]
    _train(run, config, options, *arguments, "--profile", *["--compile"] * compiled)
    profile = json.loads((run / "profile.json").read_text())
    rate, flops = profile["tokens_per_second"], profile["flops_per_second"]
    peak = _peak()
    share = flops / peak if peak and flops else None
    met = None
    if not options.quick:
        met = rate >= _TOKENS_PER_SECOND if name == "22.7M" else share is not None and share >= _SHARE_OF_PEAK
    shown = f", {share:.0%} of the data sheet's {peak / 1e12:,.0f} TFLOP/s" if share and peak else ""
    what = f"{name}, bfloat16, {batch} x {context} tokens{', --compile' * compiled}"
    report(Row("training", what, f"{rate:,.0f} tokens/s{shown}", met, rate))
    used, estimated = profile["device_peak_memory"], sum(profile["estimated_memory"].values())
    if used is not None and not compiled:
        near = abs(estimated / used - 1) <= _ESTIMATE_TOLERANCE
        report(
            Row("training", f"{name}, memory", f"{used / 1e9:.2f} GB, estimated {estimated / 1e9:.2f} GB", near, used)
        )


def _resume(options: argparse.Namespace) -> None:
    """A run, and the same one stopped in the middle and resumed."""
    arguments = ["--batch-size", 8, "--context-length", 32, "--max-steps", 20, "--dropout", 0.1, "--deterministic"]
    whole, parts = options.work / "whole", options.work / "parts"
    _train(whole, TINY, options, *arguments)
    _train(parts, TINY, options, *arguments, "--stop-after", 9)
    _train(parts, TINY, options, *arguments, "--resume")
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (whole, parts)]
    losses = [read_run(run).curve("loss").values for run in (whole, parts)]
    same = weights[0] == weights[1] and list(losses[0]) == list(losses[1])
    text = f"20 steps, stopped after 9: weights and losses {'the same to the bit' if same else 'DIFFER'}"
    report(Row("training", "--deterministic, resumed", text, same))


def _loss(options: argparse.Namespace) -> None:
    """The same run in bfloat16 on the device and in float32 on the CPU."""
    arguments = ["--batch-size", 16, "--context-length", 32, "--max-steps", 30 if options.quick else 100]
    runs: dict[str, RunResults] = {}
    for device, dtype in ((options.device, "bfloat16"), ("cpu", "float32")):
        folder = options.work / f"loss-{dtype}"
        _train(folder, TINY, argparse.Namespace(**vars(options) | {"device": device}), *arguments, "--dtype", dtype)
        runs[dtype] = read_run(folder)
    ours, theirs = (np.array(runs[dtype].curve("loss").values) for dtype in ("bfloat16", "float32"))
    worst = float(np.abs(ours / theirs - 1).max())
    text = f"{ours[-1]:.4f} after {len(ours)} steps, {theirs[-1]:.4f} on the CPU in float32; at most {worst:.2%} apart"
    report(Row("training", "bfloat16 loss beside the CPU's", text, worst <= _LOSS_TOLERANCE, worst))


def _train(run: Path, config: ModelConfig, options: argparse.Namespace, *arguments: Any) -> None:
    """`python -m trainer train`, without evaluations, samples and checkpoints on the way."""
    shape = ["d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff"]
    model = [part for name in shape for part in (f"--{name.replace('_', '-')}", getattr(config, name))]
    model.append("--tie-embeddings" if config.tie_embeddings else "--no-tie-embeddings")
    never = [part for name in ("eval", "sample", "checkpoint") for part in (f"--{name}-interval", 0)]
    command = ["-m", "trainer", "train", "--data", _data(options.work, config.vocab_size), "--output", run]
    command += [*model, *never, "--log-interval", 1, "--device", options.device, *arguments]
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"trainer train ended with {done.returncode}: {done.stderr or done.stdout}")


def _data(work: Path, vocab_size: int) -> Path:
    """Token files of random letters, written once: a step takes as long with any tokens."""
    folder = work / f"tokens-{vocab_size}"
    if not folder.exists():
        random = np.random.default_rng(0)
        text = work / "text.txt"
        letters = random.choice(list("abcdefgh \n"), (400, 2_000))
        text.write_text("<|endoftext|>".join("".join(document) for document in letters))
        encode_files([text], tokenizer_of(vocab_size), folder, EncodeSettings(val_fraction=0.05))
    return folder


def _peak() -> float | None:
    """The card's rate in bfloat16 by its data sheet; None where it is not in our table."""
    import torch

    if not torch.cuda.is_available():
        return None
    words = torch.cuda.get_device_name().lower().replace("-", " ").split()
    # Cards that differ in memory only have the same rates.
    names = {re.sub(r"-\d+g$", "", key): gpu for key, gpu in GPUS.items()}
    return next((gpu.bfloat16 for name, gpu in names.items() if set(name.split("-")) <= set(words)), None)


if __name__ == "__main__":
    main()
