"""The command line of the benchmark."""

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.bpe import plan, tables
from benchmarks.bpe.corpus import SEPARATOR, describe, gather, write_slice
from benchmarks.bpe.encoders import ENCODERS
from benchmarks.bpe.jobs import OURS, Job, Results, run
from benchmarks.bpe.targets import judge
from benchmarks.bpe.trainers import TRAINERS
from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file, reference_data
from shared.system.errors import how_to_install

_MODULES = {"minibperust": "MiniBpeRust"}
_FULL_MB, _QUICK_MB = 200, 30


def main() -> int:
    """Measure, report, and compare with the targets: 0 if all are met (in a quick run: if ours is ahead), else 1."""
    options = _options()
    peers = _peers(options.peers)
    data = reference_data()
    with tempfile.TemporaryDirectory(prefix="ownlm-benchmark-") as name:
        folder = Path(name)
        corpus, contents = _corpus(options, data, folder)
        inputs = plan.Inputs(folder, corpus, _stories(data, corpus, folder))
        plan.prepare(inputs)
        results: Results = {}
        for job in _jobs(options, inputs):
            results[job.name] = run(replace(job, packages=tuple(p for p in job.packages if p in {OURS, *peers})))
    verdicts = judge(results, quick=options.quick)
    report = {
        "machine": describe_machine(),
        "versions": installed_versions(sorted({*(_MODULES.get(p, p) for p in peers), "numba", "numpy"})),
        "command": shlex.join(["python", "-m", "benchmarks.bpe", *sys.argv[1:]]),
        "corpus": contents,
        "results": {job: {name: asdict(one) for name, one in measured.items()} for job, measured in results.items()},
        "verdicts": [verdict._asdict() for verdict in verdicts],
    }
    text = "\n\n".join([_heading(report), tables.verdict_table(verdicts), *tables.tables(results)])
    print(text, end="\n\n")
    print(json.dumps(report))
    if options.markdown:
        tables.write(options.markdown, text)
    return 0 if verdicts and all(verdict.met for verdict in verdicts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bpe", description="Byte-pair encoding beside its peers")
    parser.add_argument("--quick", action="store_true", help="two minutes: less text, only the fastest peers")
    parser.add_argument("--only", choices=plan.SECTIONS, nargs="+", default=plan.SECTIONS, help="sections to run")
    parser.add_argument("--peers", help="the packages to run beside ours, separated by commas; all by default")
    parser.add_argument(
        "--corpus", type=existing_file, help=f"text to use instead of Debian's, separated by {SEPARATOR}"
    )
    parser.add_argument("--markdown", type=Path, help="also write the tables into this file, in place of older ones")
    return parser.parse_args()


def _peers(wanted: str | None) -> list[str]:
    """The peers to run, and a word on those that are not installed."""
    known = list(dict.fromkeys(name for name in [*TRAINERS, *ENCODERS] if name != OURS))
    asked = wanted.split(",") if wanted else known
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are: {', '.join(known)}")
    missing = [name for name in asked if importlib.util.find_spec(_MODULES.get(name, name)) is None]
    if missing:
        print(f"skipped, since not installed ({how_to_install('bench')}): {', '.join(missing)}", file=sys.stderr)
    return [name for name in asked if name not in missing]


def _corpus(options: argparse.Namespace, data: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The text, and what it is made of."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ownlm" / "benchmarks"
    megabytes = _QUICK_MB if options.quick else _FULL_MB
    if options.corpus is None:
        whole = cache / f"corpus-{_FULL_MB}.txt"
        corpus = whole if whole.exists() else cache / f"corpus-{megabytes}.txt"
        contents = gather(data, corpus, megabytes * 10**6)
    else:
        corpus = options.corpus
        contents = describe(corpus)
    if options.quick and contents["bytes"] > megabytes * 10**6:
        corpus = write_slice(corpus, folder / "corpus.txt", megabytes * 10**6)
        contents = {**contents, **describe(corpus)}
    return corpus, contents


def _stories(data: Path, corpus: Path, folder: Path) -> Path:
    """TinyStories, as much as there is; the beginning of the corpus where there is none."""
    parts = sorted(data.glob("tinystories_*.txt"))
    stories = folder / "stories.txt"
    if not parts:
        print(f"no tinystories_*.txt in {data} (set OWNLM_DATA): the corpus stands in for them", file=sys.stderr)
        return corpus
    with stories.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes().rstrip() + f"\n{SEPARATOR}\n".encode())
    return stories


def _jobs(options: argparse.Namespace, inputs: plan.Inputs) -> Iterator[Job]:
    sections = plan.quick if options.quick else plan.full
    for section in options.only:
        yield from sections(section, inputs)
    if options.quick:
        return
    if "start" in options.only:
        with plan.nothing_compiled(inputs) as job:
            yield job
    for megabytes in plan.SCALING_MB if "scaling" in options.only else ():
        if shutil.disk_usage(inputs.folder).free < 4 * megabytes * 10**6:
            print(f"skipped, since the disk is too full: scaling to {megabytes} MB", file=sys.stderr)
            return
        with plan.scaling(inputs, megabytes) as jobs:
            yield from jobs


def _heading(report: dict[str, Any]) -> str:
    def listed(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in values.items())

    contents = {name: value for name, value in report["corpus"].items() if name != "packages"}
    packages = report["corpus"].get("packages")
    lines = [
        f"`{report['command']}`",
        f"- Machine: {listed(report['machine'])}.",
        f"- Versions: {listed(report['versions'])}.",
        f"- Corpus: {listed(contents)}"
        + (f"; reference data, and Debian's packages {listed(packages)}." if packages else "."),
    ]
    return "\n".join([lines[0], "", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
