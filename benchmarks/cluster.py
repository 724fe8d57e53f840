"""Work on a Ray cluster of this machine beside the same without: python -m benchmarks.cluster.

The last lines are the constants of the model in docs/how-to/a-terabyte-of-text.md.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.bpe import Tokenizer, train_bpe
from shared.bpe.training import PartCounts, TextFile, TrainingConfig, count_part
from shared.bpe.training.counter import counter_for
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.spill import SpilledRuns
from trainer.cleaning.clean import clean_files
from trainer.console.progress import progress
from trainer.settings.clean import CleanSettings
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files

SEPARATOR = "<|endoftext|>"
Job = Callable[[str | None, int], float]
"""Takes the address of a cluster, or None, and the number of the round; returns seconds."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/owt/owt_sample.txt"))
    parser.add_argument("--size", type=int, default=240, help="megabytes, of copies of the text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", action="store_true", help="only the constants of one core and the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["encode", "vocab", "clean"])
    options = parser.parse_args()
    if options.model:
        constants(options.text)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = options.text.read_bytes()
        path = folder / "text.txt"
        with path.open("wb") as file:
            for _ in range(-(-options.size * 1_000_000 // len(sample))):
                file.write(sample)
        tokenizer = train_bpe([sample[:4_000_000].decode(errors="ignore")], 8192, special_tokens=[SEPARATOR]).tokenizer
        import ray

        ray.init(num_cpus=options.workers, object_store_memory=200 << 20, log_to_driver=False)
        jobs: dict[str, Job] = {
            "encode": lambda kind, n: encode(path, tokenizer, folder / f"e-{kind}-{n}", kind, options),
            "vocab": lambda kind, n: vocab(path, folder / f"v-{kind}-{n}", kind, options),
            "clean": lambda kind, n: clean(path, folder / f"c-{kind}-{n}", kind, options),
        }
        for job in [options.only] if options.only else jobs:
            compare(job, path, options, jobs[job])
        ray.shutdown()


def compare(name: str, path: Path, options: argparse.Namespace, run: Job) -> None:
    """Alternate both, the first round not counted."""
    seconds: dict[str | None, list[float]] = {None: [], "auto": []}
    for number in range(options.rounds + 1):
        for kind, times in seconds.items():
            times.append(run(kind, number))
    megabytes = path.stat().st_size / 1e6
    threads, workers = (megabytes / min(times[1:]) for times in seconds.values())
    medians = [megabytes / statistics.median(times[1:]) for times in seconds.values()]
    print(
        f"{name}: {options.workers} workers without Ray {threads:.1f} MB/s, with Ray {workers:.1f} MB/s: "
        f"{workers / threads:.2f} (medians {medians[0]:.0f} and {medians[1]:.0f}: {medians[1] / medians[0]:.2f})"
    )


def encode(path: Path, tokenizer: Tokenizer, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of encoding by a tokenizer that has seen no text, as the workers' have."""
    tokenizer = Tokenizer(tokenizer.vocabulary)
    tokenizer.warm_up()
    settings = EncodeSettings(shard_tokens=5_000_000, ray=kind, threads=None if kind else options.workers)
    begin = time.perf_counter()
    encode_files([path], tokenizer, output, settings)
    return time.perf_counter() - begin


def vocab(path: Path, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of counting."""
    settings = VocabSettings(vocab_size=300, held_out="0", ray=kind, threads=None if kind else options.workers)
    return train_tokenizer([path], output, settings).training.counting_seconds


def clean(path: Path, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of both passes, and of comparing."""
    settings = CleanSettings(ray=kind, workers=None if kind else options.workers)
    begin = time.perf_counter()
    with progress(shown=False) as new_bar:
        clean_files([path], output, settings, new_bar, part_bytes=path.stat().st_size // 16)
    return time.perf_counter() - begin


def constants(sample: Path) -> None:
    """Measure one core, by processor time, and print the constants and what follows for a terabyte."""
    config = TrainingConfig(300, [SEPARATOR])
    data = sample.read_bytes()
    with tempfile.TemporaryDirectory() as name:
        half = Path(name) / "half.txt"
        half.write_bytes(data[: data.rfind(SEPARATOR.encode(), 0, len(data) // 2)])
        rest = Path(name) / "rest.txt"
        rest.write_bytes(data[half.stat().st_size :])
        count_part(TextFile(half), config)  # loads what is compiled
        begin = time.process_time()
        whole = count_part(TextFile(sample), config)
        counting = len(data) / (time.process_time() - begin)
        halves = [count_part(TextFile(path), config) for path in (half, rest)]
        seconds = []
        for _ in range(5):
            counter = counter_for(config, MemoryBudget(None), SpilledRuns(Path(name)), threads=1)
            halves[0].add_to(counter)
            begin = time.process_time()
            halves[1].add_to(counter)
            seconds.append(time.process_time() - begin)
        joining = distinct(halves[1]) / min(seconds)
        tokenizer = train_bpe([data[:4_000_000].decode(errors="ignore")], 8192, special_tokens=[SEPARATOR]).tokenizer
        tokenizer.warm_up()
        begin = time.process_time()
        encode_files([sample], tokenizer, Path(name) / "tokens", EncodeSettings(threads=1))
        encoding = len(data) / (time.process_time() - begin)
    exponent = math.log2(distinct(whole) / distinct(halves[0]))  # Heaps' law
    constants = Constants(counting, encoding, joining, distinct(whole) / len(data) ** exponent, exponent)
    print(constants)
    for nodes in (2, 16, 128):
        print(terabyte(constants, nodes))


def distinct(counts: PartCounts) -> int:
    """Pretokens of a part."""
    return sum(len(entries) // 3 for entries, _ in counts.tables)


@dataclass(frozen=True)
class Constants:
    """Bytes a second of counting and encoding on one core, pretokens a second of joining, and Heaps' law."""

    counting: float
    encoding: float
    joining: float
    heaps_factor: float
    heaps_exponent: float

    def __str__(self) -> str:
        return (
            f"one core counts {self.counting / 1e6:.0f} MB/s, encodes {self.encoding / 1e6:.0f} MB/s, joins "
            f"{self.joining / 1e6:.0f} M pretokens/s; n bytes have {self.heaps_factor:.2f} n^{self.heaps_exponent:.2f} "
            f"pretokens: {self.pretokens(PART):,.0f} in {PART / 1e6:.0f} MB"
        )

    def pretokens(self, size: float) -> float:
        """Distinct pretokens of so many bytes."""
        return float(self.heaps_factor * size**self.heaps_exponent)


SIZE, PART = 1e12, 128e6
CORES, NETWORK, DOLLARS = 32, 3e9, 1.5  # of a node: cores, bytes a second, price an hour
ENTRY_BYTES = 26  # of a pretoken's count on its way
TOKEN_BYTES = 2 / 4.4  # of token files for each byte of text


def terabyte(constants: Constants, nodes: int) -> str:
    """Seconds for each stage: the slowest of what runs at the same time, and what comes after."""
    joined = SIZE / PART * constants.pretokens(PART)
    counting = {
        "counting": SIZE / (nodes * CORES * constants.counting),
        "reading": SIZE / (nodes * NETWORK),
        "joining": joined / constants.joining,
        "network of the first node": joined * ENTRY_BYTES / NETWORK,
    }
    encoding = {
        "encoding": SIZE / (nodes * CORES * constants.encoding),
        "reading and writing": SIZE * (1 + TOKEN_BYTES) / (nodes * NETWORK),
    }
    stages = [max(stage.items(), key=lambda item: item[1]) for stage in (counting, encoding)]
    hours = sum(seconds for _, seconds in stages) / 3600
    text = ", ".join(f"{seconds / 60:.1f} min (bound: {name})" for name, seconds in stages)
    return f"{nodes} nodes: {text}; {nodes * hours * DOLLARS:.2f} $"


if __name__ == "__main__":
    main()
