"""Byte-pair encoding beside its peers, in one run on one input: `python -m benchmarks.bpe`, `--quick` in 2 minutes.

Every measurement is a process of its own; packages take turns, and medians are told. Peers are those of gigatoken,
gigabpe, tiktoken, tokenizers and rustbpe that are installed. Exits with 1 if ours is behind one of them, or their ids
differ from ours.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bpe_corpus import SEPARATOR, gather
from shared.bpe import Tokenizer, train_bpe

ROOT = Path(__file__).resolve().parent.parent
ENCODERS = ("ownlm", "gigatoken", "tiktoken", "tokenizers")
TRAINERS = ("ownlm", "gigabpe", "gigatoken", "rustbpe", "tokenizers")
# Too slow to be asked more than once, or at all where time is short.
SLOW = {"tokenizers", "tiktoken", "rustbpe"}


def main() -> int:
    """Measure, tell, and judge."""
    options = _options()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ownlm" / "benchmarks"
    corpus = options.corpus or gather(
        options.data, cache / f"corpus-{options.megabytes}.txt", options.megabytes * 10**6
    )
    with tempfile.TemporaryDirectory() as folder:
        encoding_corpus = _slice(corpus, Path(folder) / "encoding.txt", 20 if options.quick else options.megabytes)
        _write_vocabulary(options.data, encoding_corpus, Path(folder))
        jobs: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            (ENCODERS, {"kind": "encoding", "corpus": str(encoding_corpus), "folder": folder, "long": 10**7})
        ]
        if not options.no_training:
            training_corpus = _slice(corpus, Path(folder) / "training.txt", 50 if options.quick else options.megabytes)
            for vocab_size in (32000,) if options.quick else (10000, 32000):
                job = {"kind": "training", "corpus": str(training_corpus), "vocab_size": vocab_size}
                jobs.append((TRAINERS, job))
        medians = {}
        for packages, job in jobs:
            medians |= _measure(packages, job, options)
    print(json.dumps({"machine": _machine(), "corpus": str(corpus), "quick": options.quick, "seconds": medians}))
    return _judge(medians)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 MB to encode and 50 MB to learn from, fast peers only")
    parser.add_argument("--corpus", type=Path, help="text to use instead of gathering it; separated by <|endoftext|>")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("OWNLM_DATA", ROOT.parent / "shared" / "data"))
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--peers", help="names of the peers to run, separated by commas, instead of all")
    return parser.parse_args()


def _slice(corpus: Path, target: Path, megabytes: int) -> Path:
    """The beginning of a corpus, whole documents."""
    with corpus.open("rb") as source:
        data = source.read(megabytes * 10**6)
    end = data.rfind(SEPARATOR.encode())
    target.write_bytes(data[: end + len(SEPARATOR)] if end >= 0 else data)
    return target


def _write_vocabulary(data: Path, corpus: Path, folder: Path) -> None:
    """GPT-2's vocabulary where it is at hand, else one of 32,000 learnt from the corpus, in the formats of all."""
    gpt2 = data / "tokenizers" / "gpt2"
    if gpt2.is_dir():
        tokenizer = Tokenizer.from_files(gpt2)
    else:
        texts = corpus.read_text("utf-8").split(SEPARATOR)
        tokenizer = train_bpe(texts, 32000, special_tokens=[SEPARATOR]).tokenizer
    vocabulary = tokenizer.vocabulary
    # tiktoken takes ids for ranks: renumber, so that all packages have one set of ids.
    order = [vocabulary.ids[bytes([byte])] for byte in range(256)]
    order += [vocabulary.ids[vocabulary.tokens[left] + vocabulary.tokens[right]] for left, right in vocabulary.merges]
    new_ids = {old: new for new, old in enumerate(order)}
    ranked = type(vocabulary)(
        tokens={new: vocabulary.tokens[old] for old, new in new_ids.items()},
        merges=tuple((new_ids[left], new_ids[right]) for left, right in vocabulary.merges),
        added=tuple(type(token)(len(order) + index, token.content) for index, token in enumerate(vocabulary.added)),
        pattern=vocabulary.pattern,
        eos=vocabulary.eos,
    )
    Tokenizer(ranked).save(folder)
    Tokenizer(ranked).to_tiktoken(folder / "vocabulary.tiktoken")


def _measure(
    packages: tuple[str, ...], job: dict[str, Any], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Medians by discipline and package."""
    present = [name for name in packages if name == "ownlm" or importlib.util.find_spec(name)]
    if options.peers is not None:
        present = [name for name in present if name in {"ownlm", *options.peers.split(",")}]
    if options.quick:
        present = [name for name in present if name not in SLOW or (job["kind"], name) == ("encoding", "tiktoken")]
    times: dict[str, dict[str, list[float]]] = {}
    ids: dict[str, str] = {}
    for turn in range(options.repeats):
        for name in present:
            if turn and name in SLOW:
                continue
            result = _run(name, job | {"again": name not in SLOW})
            ids[name] = result.pop("ids", "")
            for discipline, seconds in result.items():
                times.setdefault(discipline, {}).setdefault(name, []).append(seconds)
    for name, digest in ids.items():
        if digest != ids["ownlm"]:
            raise SystemExit(f"{name} gives other ids than ours")
    medians = {
        discipline: {name: statistics.median(values) for name, values in by_name.items()}
        for discipline, by_name in times.items()
    }
    _print_table(medians, present)
    return medians


def _run(name: str, job: dict[str, Any]) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "bpe_packages.py", name, json.dumps(job)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{process.stderr}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def _print_table(medians: dict[str, dict[str, float]], packages: list[str]) -> None:
    print(f"\n{'seconds (times ours)':32}" + "".join(f"{name:>22}" for name in packages))
    for discipline, by_name in medians.items():
        ours = by_name["ownlm"]
        cells = [f"{by_name[n]:.6g} ({by_name[n] / ours:.2f})" if n in by_name else "" for n in packages]
        print(f"{discipline:32}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def _judge(medians: dict[str, dict[str, float]]) -> int:
    behind = [
        f"{discipline}: {name} {by_name['ownlm'] / value:.2f} times as fast"
        for discipline, by_name in medians.items()
        if "MB" not in discipline
        for name, value in by_name.items()
        if value < by_name["ownlm"]
    ]
    print("\nours is ahead everywhere" if not behind else "\nours is behind: " + "; ".join(behind))
    return 1 if behind else 0


def _machine() -> dict[str, str | int]:
    names = [name for name in {*ENCODERS, *TRAINERS, "numba", "numpy"} if name != "ownlm"]
    versions = {name: version(name) for name in sorted(names) if importlib.util.find_spec(name)}
    return {
        "processor": _processor(),
        "processors": os.cpu_count() or 0,
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    sys.exit(main())
