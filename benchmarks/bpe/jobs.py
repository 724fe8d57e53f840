"""Measurements: which package does what on which text, how often, and what comes of it."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from compileall import compile_dir
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

OURS = "ownlm"
ROOT = Path(__file__).resolve().parent.parent.parent
_TIMEOUT = 600


@dataclass(frozen=True)
class Job:
    """One kind of work, done by several packages in turns, each time in a new process.

    Attributes:
        name: What it is called in tables and targets.
        kind: The function of worker.py.
        packages: Who does it, ours first.
        arguments: Of that function.
        threads: Processors that it may use.
        repeats: Processes for each package.
        slow: Packages that get one process only, and arguments of their own: less text, or no second call.
        root: The folder of the sources that are run.
        environment: Variables of the process.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    arguments: Mapping[str, Any]
    threads: int = 2
    repeats: int = 1
    slow: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    root: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Measurement:
    """What a package did in a job.

    Attributes:
        seconds: Medians by discipline.
        runs: The seconds of every process.
        num_bytes: Of the text; 0 where none is read.
        peak: The most bytes of memory held, 0 if that was not looked at.
        equal: Whether the ids, or decoded bytes, are ours; None if there is nothing to compare.
        common: The share of our tokens that were learned too, from the same text.
        distinct_words: In the text, as ours counts them.
        failure: Why there is nothing.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    runs: list[dict[str, float]] = field(default_factory=list)
    num_bytes: int = 0
    peak: int = 0
    equal: bool | None = None
    common: float | None = None
    distinct_words: int = 0
    failure: str = ""

    def rate(self, discipline: str) -> float:
        """Bytes per second; calls per second where no bytes were counted."""
        return (self.num_bytes or 1) / self.seconds[discipline]


Results = dict[str, dict[str, Measurement]]


def run(job: Job) -> dict[str, Measurement]:
    """Do a job.

    Raises:
        SystemExit: If ours fails.
    """
    _compile(job.root)
    outputs: dict[str, list[dict[str, Any]]] = {name: [] for name in job.packages}
    failures: dict[str, str] = {}
    for turn in range(job.repeats):
        for package in job.packages:
            if package in failures or (turn and package in job.slow):
                continue
            try:
                output = _run_once(job, package)
            except RuntimeError as error:
                if package == OURS:
                    raise SystemExit(f"{job.name}: ours failed: {error}") from None
                failures[package] = str(error)
                continue
            outputs[package].append(output)
            seconds = ", ".join(f"{name} {value:.4g} s" for name, value in output["seconds"].items())
            print(f"{job.name}: {package}: {seconds}", file=sys.stderr, flush=True)
    measured = {package: summarize(outputs[package], outputs[OURS]) for package in job.packages if outputs[package]}
    return measured | {package: Measurement(failure=failure) for package, failure in failures.items()}


@cache
def _compile(root: Path) -> None:
    """Keep the bytecode of our modules, as installing a package does; the peers are installed."""
    for name in ("shared", "trainer"):
        compile_dir(root / name, quiet=1)


def summarize(outputs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> Measurement:
    """Put the outputs of a package's processes together, and compare them with ours."""
    runs = [output["seconds"] for output in outputs]
    tokens, our_tokens = (set(each[0].get("tokens", ())) for each in (outputs, ours))
    same_text = outputs[0].get("bytes") == ours[0].get("bytes")
    return Measurement(
        seconds={discipline: statistics.median(run[discipline] for run in runs) for discipline in runs[0]},
        runs=runs,
        num_bytes=outputs[0].get("bytes", 0),
        peak=int(statistics.median(output.get("peak", 0) for output in outputs)),
        equal=_equal(outputs, ours[0]),
        common=len(tokens & our_tokens) / len(our_tokens) if tokens and same_text else None,
        distinct_words=outputs[0].get("distinct words", 0),
    )


def _equal(outputs: Sequence[Mapping[str, Any]], ours: Mapping[str, Any]) -> bool | None:
    """Whether all digests of what both have done are equal. "all" of less text is not ours of all."""
    found = []
    for output in outputs:
        same_text = output.get("bytes") == ours.get("bytes")
        for name, digest in output.get("digests", {}).items():
            if name in ours["digests"] and (same_text or name != "all"):
                found.append(digest == ours["digests"][name])
    return all(found) if found else None


def _run_once(job: Job, package: str) -> dict[str, Any]:
    arguments = {"kind": job.kind, "threads": job.threads, **job.arguments, **job.slow.get(package, {})}
    command = [sys.executable, "-m", "benchmarks.bpe.worker", package, json.dumps(arguments)]
    environment = os.environ | {"PYTHONPATH": str(job.root), **job.environment}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=job.root, env=environment, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {_TIMEOUT} s") from None
    if process.returncode:
        last = process.stderr.strip().splitlines()[-5:] or [f"exit status {process.returncode}"]
        raise RuntimeError(" / ".join(last))
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result
