"""The service over HTTP at 1 to 128 clients, in float32 and bfloat16, beside vLLM."""

import argparse
import dataclasses
import statistics
import time
from contextlib import ExitStack

import numpy as np

from benchmarks.gpu.options import part_parser
from benchmarks.gpu.rows import Row, report
from benchmarks.gpu.shapes import measured
from benchmarks.serving.load import Measurement, measure
from benchmarks.serving.model import make_model
from benchmarks.serving.servers import CONTEXT, Server, ours, vllm
from shared.lm import ModelConfig

PROMPT_TOKENS = 64
_ANSWERS = {1: 4, 8: 32, 32: 128, 128: 512}
_LEAST_SECONDS = 45.0  # for a model and a dtype
_TARGET_ONE_STREAM = 6_500.0  # tokens per second, of the 22.7M model on an H100


def main() -> None:
    """Measure each model in each dtype, as long as there is time."""
    parser = part_parser(__doc__)
    parser.add_argument("--vllm", help="the interpreter that has it")
    parser.add_argument("--no-vllm", default="not asked for", help="why it is not measured")
    options = parser.parse_args()
    if not options.vllm:
        report(Row("serving", "vLLM", f"left out: {options.no_vllm}"))
    end = time.monotonic() + options.seconds
    for dtype in ("bfloat16", "float32"):
        for name, config in measured(quick=options.quick).items():
            if time.monotonic() + (0 if options.quick else _LEAST_SECONDS) > end:
                report(Row("serving", f"{name} {dtype}", "skipped: no time was left", met=False))
            else:
                _measure_all(name, config, dtype, options)


def _measure_all(name: str, config: ModelConfig, dtype: str, options: argparse.Namespace) -> None:
    """Both servers in turn, at each number of clients; the one that is not asked is idle."""
    clients = (1, 2) if options.quick else tuple(_ANSWERS)
    folder = options.work / name
    if not folder.exists():
        make_model(folder, dataclasses.replace(config, context_length=CONTEXT, initializer_range=0.05))
    contestants = [ours(folder, dtype, device=options.device, max_batch=max(clients))]
    if options.vllm:
        contestants.append(vllm(options.vllm, folder, dtype, max_batch=max(clients)))
    random = np.random.default_rng(0)
    with ExitStack() as stack:
        servers = []
        for contestant in contestants:
            try:
                servers.append(Server(contestant))
            except SystemExit as error:  # how a server that does not start is reported
                report(Row("serving", f"{name} {contestant.name}", f"failed: {error}", met=False))
            else:
                stack.callback(servers[-1].close)
        for count in clients:
            seen: dict[str, list[Measurement]] = {}
            for round_ in range(1 if options.quick else 3):  # the first only warms up
                for server in servers:
                    who = server.contestant
                    size = (count if options.quick or not round_ else _ANSWERS[count], PROMPT_TOKENS)
                    prompts = random.integers(0, config.vocab_size - 1, size).tolist()
                    bodies = [who.body(prompt, seed) for seed, prompt in enumerate(prompts)]
                    one = measure(server.port, who.path, bodies, clients=count, count_tokens=who.count_tokens)
                    if round_ or options.quick:
                        seen.setdefault(who.name, []).append(one)
            _report(name, count, seen)


def _report(name: str, clients: int, seen: dict[str, list[Measurement]]) -> None:
    medians = {
        who: {key: statistics.median(getattr(one, key) for one in all_) for key in dataclasses.asdict(all_[0])}
        for who, all_ in seen.items()
    }
    for who, one in medians.items():
        met = None
        others = [other for rival, other in medians.items() if rival != who]
        if who.startswith("ownlm") and clients == 1 and name == "22.7M" and who.endswith("bfloat16"):
            met = one["tokens_per_second"] >= _TARGET_ONE_STREAM
        elif who.startswith("ownlm") and others and clients > 1:
            met = all(
                one["tokens_per_second"] > other["tokens_per_second"]
                and one["first_token_ms"] < other["first_token_ms"]
                for other in others
            )
        text = (
            f"{one['tokens_per_second']:,.0f} tokens/s, first token {one['first_token_ms']:.1f} ms, between "
            f"{one['between_ms']:.2f} ms, p99 {one['between_p99_ms']:.2f} ms"
        )
        what = f"{name} {who}, {clients} client{'s' if clients > 1 else ''}"
        report(Row("serving", what, text, met, one["tokens_per_second"]))


if __name__ == "__main__":
    main()
