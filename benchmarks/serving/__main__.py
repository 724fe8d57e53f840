"""The command line of the benchmark."""

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file, existing_folder
from benchmarks.serving import tables
from benchmarks.serving.load import measure
from benchmarks.serving.model import make_model
from benchmarks.serving.servers import CONTEXT, NEW_TOKENS, Contestant, Server, llama_cpp, ours, ours_on_vllm

PROMPT_TOKENS = 64
CLIENTS = (1, 8, 32)
_ANSWERS = {1: 4, 8: 16, 32: 64}


def main() -> int:
    """Measure, report, and compare with the targets: 0 if all are met, else 1."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name, ExitStack() as stack:
        folder = options.model or make_model(Path(name) / "model")
        servers = []
        for contestant in _contestants(options, folder, Path(name)):
            servers.append(Server(contestant))
            stack.callback(servers[-1].close)
        batches = _Transformers(folder) if _wants(options, "transformers f32") and _has_transformers() else None
        if batches is not None:
            stack.callback(batches.close)
        results = _rounds(servers, batches, _Prompts(folder), options.rounds)
    verdicts = tables.judge(results)
    report = {
        "machine": describe_machine(),
        "versions": installed_versions(["torch", "transformers", "uvicorn"]) | _llama_version(options.llama_server),
        "command": shlex.join(["python", "-m", "benchmarks.serving", *sys.argv[1:]]),
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "results": results,
        "verdicts": [verdict._asdict() for verdict in verdicts],
    }
    print(tables.render(report), end="\n\n")
    print(json.dumps(report))
    return 0 if all(verdict.met for verdict in verdicts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description="Our service beside its peers")
    parser.add_argument(
        "--model", type=existing_folder, help="a model folder; by default random weights of CS336's shape"
    )
    parser.add_argument("--llama-server", type=existing_file, help="llama.cpp's server; left out where none is given")
    parser.add_argument("--vllm", type=existing_file, help="a Python that has vLLM (make vllm); left out without it")
    parser.add_argument("--rounds", type=int, default=5, help="of all servers in turn; 5 by default")
    parser.add_argument("--only", nargs="+", help="names that begin so, as in the table")
    return parser.parse_args()


def _wants(options: argparse.Namespace, name: str) -> bool:
    return not options.only or any(name.startswith(start) for start in options.only)


def _contestants(options: argparse.Namespace, folder: Path, work: Path) -> list[Contestant]:
    found = [ours(folder, dtype) for dtype in ("float32", "bfloat16", "int8")]
    if options.llama_server:
        from trainer.export.gguf_file import write_gguf

        for dtype in ("f32", "q8_0"):
            write_gguf(folder, work / f"{dtype}.gguf", dtype)
            found += [llama_cpp(options.llama_server, work / f"{dtype}.gguf", dtype, top_k=k) for k in (0, 40)]
    if options.vllm:
        found.append(ours_on_vllm(options.vllm, folder))
    return [contestant for contestant in found if _wants(options, contestant.name)]


def _has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def _llama_version(binary: Path | None) -> dict[str, str]:
    if binary is None:
        return {}
    reported = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return {"llama.cpp": (reported.stdout + reported.stderr).split("version:")[-1].split("\n")[0].strip()}


class _Prompts:
    """Prompts that no server has seen, so that none is answered from a cache."""

    def __init__(self, folder: Path) -> None:
        self._vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        self._random = np.random.default_rng(0)

    def take(self, count: int) -> list[list[int]]:
        """`count` new ones, of ids that every tokenizer has."""
        prompts: list[list[int]] = self._random.integers(0, self._vocab_size - 1, (count, PROMPT_TOKENS)).tolist()
        return prompts


class _Transformers:
    """The parent's end of `benchmarks.serving.transformers_worker`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.serving.transformers_worker", str(folder)]
        root = Path(__file__).parents[2]
        environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
        )
        assert self._answer() == "ready"

    def tokens_per_second(self, prompts: Sequence[Sequence[int]]) -> float:
        """Of one batch of all prompts."""
        assert self._process.stdin is not None
        print(json.dumps(prompts), file=self._process.stdin, flush=True)
        return len(prompts) * NEW_TOKENS / float(self._answer())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("transformers' process ended")
        return line.strip()


def _rounds(
    servers: Sequence[Server], batches: _Transformers | None, prompts: _Prompts, rounds: int
) -> list[dict[str, Any]]:
    """All contestants in turn, so that all meet the same moods of the machine; the first round only warms up."""
    rates: dict[tuple[str, int], list[dict[str, float]]] = {}
    for round_ in range(rounds + 1):
        for clients in CLIENTS:
            for server in servers:
                who = server.contestant
                bodies = [who.body(p, seed) for seed, p in enumerate(prompts.take(_ANSWERS[clients]))]
                seen = measure(server.port, who.path, bodies, clients=clients, count_tokens=who.count_tokens)
                if round_:
                    rates.setdefault((who.name, clients), []).append(asdict(seen))
            if batches is not None:
                rate = batches.tokens_per_second(prompts.take(clients))
                if round_:
                    rates.setdefault(("transformers f32", clients), []).append({"tokens_per_second": rate})
    memory = {server.contestant.name: server.memory_mb for server in servers}
    return [_medians(name, clients, seen, memory.get(name)) for (name, clients), seen in rates.items()]


def _medians(name: str, clients: int, seen: Sequence[dict[str, float]], memory_mb: float | None) -> dict[str, Any]:
    rates = [one["tokens_per_second"] for one in seen]
    times = {
        key: statistics.median(one[key] for one in seen) if key in seen[0] else None
        for key in ("first_token_ms", "between_ms", "between_p99_ms")
    }
    return {
        "name": name,
        "clients": clients,
        "tokens_per_second": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        **times,
        "memory_mb": memory_mb,
    }


assert PROMPT_TOKENS + NEW_TOKENS <= CONTEXT

if __name__ == "__main__":
    raise SystemExit(main())
