"""What fewer bits cost on the CPU: `python -m benchmarks.quantization MODEL_FOLDER --text FILE`.

The engine's step reads the same windows of text with each dtype of the weights and of the KV cache. torch in float32
says what the distribution of the next token is, from which the Kullback-Leibler divergence and the agreement on the
most likely token are counted. A table and a line of JSON follow. `benchmarks.engine_step` and `benchmarks.kv_cache`
measure the speed.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file, existing_folder
from services.inference.engine.runner.cpu.panels import KINDS, KV_KINDS
from services.inference.engine.runner.cpu.runner import CpuRunner
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import pack_weights
from services.inference.engine.runner.protocol import Segment
from services.inference.engine.sampler.cpu import CpuSampler
from services.inference.engine.types import BLOCK_SIZE
from shared.bpe import TokenizerError
from shared.lm import ModelFolder, ModelFolderError, load_model_folder

MOST_DIVERGENCE, LEAST_AGREEMENT = 0.005, 0.96  # of int8, with each KV cache
LOGIT_ROWS = 64

Tokens = NDArray[np.int64]
Logits = NDArray[np.float32]


@dataclass
class Result:
    """What a model in some dtypes made of the text.

    Attributes:
        weight_bytes: Of all weights in memory, the embedding and norms in float32 among them.
        divergence: Mean Kullback-Leibler divergence of its distribution from torch's in float32, in nats.
        agreement: How often both have the same most likely token.
        perplexity: Of the text.
    """

    weight_bytes: int
    divergence: float
    agreement: float
    perplexity: float


@torch.no_grad()
def main() -> int:
    """Measure and report: 0 if int8 is as good as it has to be, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=existing_folder)
    parser.add_argument("--text", type=existing_file, required=True, help="text that the model was not trained on")
    parser.add_argument("--windows", type=int, default=40, help="windows of the context's length")
    options = parser.parse_args()
    try:
        folder = load_model_folder(options.folder, dtype=torch.float32)
        windows = _windows(folder, options.text.read_text("utf-8"), options.windows)
    except (ModelFolderError, TokenizerError) as error:
        raise SystemExit(str(error)) from None
    except UnicodeDecodeError as error:
        raise SystemExit(f"{options.text} is not UTF-8: {error}") from None
    references = [folder.model(torch.from_numpy(window)[None])[0].numpy() for window in windows]
    thread_pool = KernelThreadPool(torch.get_num_threads())
    results = {
        f"{dtype} | {kv_dtype}": _measure(_runner(folder, kind, kv_kind, thread_pool), windows, references)
        for dtype, kind in KINDS.items()
        for kv_dtype, kv_kind in KV_KINDS.items()
    }
    thread_pool.close()
    print("| dtype | KV cache | weights, MB | divergence from float32 | same most likely token | perplexity |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, result in results.items():
        quality = f"{result.divergence:.2g} | {result.agreement:.2%} | {result.perplexity:.4f}"
        print(f"| {name} | {result.weight_bytes / 1e6:.1f} | {quality} |")
    about = {
        "machine": describe_machine(),
        "versions": installed_versions(["numba", "llvmlite", "torch"]),
        "parameters": folder.config.num_parameters,
        "tokens": sum(map(len, windows)),
    }
    print("\n" + json.dumps(about | {"results": {name: asdict(result) for name, result in results.items()}}))
    int8 = [result for name, result in results.items() if name.startswith("int8")]
    return int(any(one.divergence > MOST_DIVERGENCE or one.agreement < LEAST_AGREEMENT for one in int8))


def _windows(folder: ModelFolder, text: str, count: int) -> list[Tokens]:
    """The beginning of the text in windows of the context's length."""
    length = folder.config.context_length
    tokens = np.array(folder.tokenizer.encode(text, allowed_special="all")[: count * length], np.int64)
    if len(tokens) < length:
        sys.exit(f"the text has {len(tokens)} tokens and a window {length}: give a longer one")
    return [tokens[begin : begin + length] for begin in range(0, len(tokens) - length + 1, length)]


def _runner(folder: ModelFolder, kind: int, kv_kind: int, thread_pool: KernelThreadPool) -> CpuRunner:
    config = folder.config
    tensors = {name: tensor.numpy() for name, tensor in folder.model.state_dict().items()}
    return CpuRunner(
        config,
        pack_weights(config, tensors, kind),
        CpuSampler(config.vocab_size, LOGIT_ROWS, num_threads=thread_pool.num_threads, run=thread_pool.run),
        thread_pool,
        num_blocks=-(-config.context_length // BLOCK_SIZE),
        num_slots=LOGIT_ROWS,
        max_step_tokens=config.context_length,
        context_length=config.context_length,
        kv_kind=kv_kind,
    )


def _measure(runner: CpuRunner, windows: Sequence[Tokens], references: Sequence[Logits]) -> Result:
    blocks = range(runner.num_blocks)
    divergence = loss = 0.0
    agreeing = 0
    for window, reference in zip(windows, references, strict=True):
        expected = _log_probabilities(reference)
        actual = _log_probabilities(_logits(runner, window, blocks))
        divergence += float((expected.exp() * (expected - actual)).sum())
        agreeing += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        loss -= float(actual[range(len(window) - 1), window[1:]].sum())
    num_tokens = sum(map(len, windows))
    return Result(
        weight_bytes=sum(array.nbytes for array in runner._weights),
        divergence=divergence / num_tokens,
        agreement=agreeing / num_tokens,
        perplexity=math.exp(loss / (num_tokens - len(windows))),
    )


def _logits(runner: CpuRunner, window: Tokens, blocks: Sequence[int]) -> Logits:
    """Those after each token of a window, [tokens, vocab_size]."""
    runner.forward([Segment(window.tolist(), 0, blocks)])
    places = range(len(window))
    parts = [places[first : first + LOGIT_ROWS] for first in range(0, len(window), LOGIT_ROWS)]
    return np.concatenate([runner.logits(part).copy() for part in parts])


def _log_probabilities(logits: Logits) -> torch.Tensor:
    return torch.from_numpy(logits).double().log_softmax(-1)


if __name__ == "__main__":
    sys.exit(main())
