"""Counting and encoding on a Ray cluster of this machine beside the same by threads: python -m benchmarks.cluster.

The last lines are the constants of the model in docs/how-to/a-terabyte-of-text.md.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ray

from shared.bpe import Tokenizer, train_bpe
from shared.bpe.training import TextFile, TrainingConfig, count_part
from shared.bpe.training.counter import counter_for
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.spill import SpilledRuns
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files

SEPARATOR = "<|endoftext|>"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/owt/owt_sample.txt"))
    parser.add_argument("--size", type=int, default=240, help="megabytes, of copies of the text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = options.text.read_bytes()
        path = folder / "text.txt"
        with path.open("wb") as file:
            for _ in range(-(-options.size * 1_000_000 // len(sample))):
                file.write(sample)
        tokenizer = train_bpe([sample[:4_000_000].decode(errors="ignore")], 8192, special_tokens=[SEPARATOR]).tokenizer
        ray.init(num_cpus=options.workers, object_store_memory=200 << 20, log_to_driver=False)
        compare(
            "encode", path, options, lambda kind, n: encode(path, tokenizer, folder / f"e-{kind}-{n}", kind, options)
        )
        compare("vocab", path, options, lambda kind, n: vocab(path, folder / f"v-{kind}-{n}", kind, options))
        ray.shutdown()
        constants(options.text)


def compare(name: str, path: Path, options: argparse.Namespace, run: Callable[[str | None, int], float]) -> None:
    """Alternate both, the first round not counted."""
    seconds: dict[str | None, list[float]] = {None: [], "auto": []}
    for number in range(options.rounds + 1):
        for kind, times in seconds.items():
            times.append(run(kind, number))
    megabytes = path.stat().st_size / 1e6
    threads, workers = (megabytes / min(times[1:]) for times in seconds.values())
    medians = [megabytes / statistics.median(times[1:]) for times in seconds.values()]
    print(
        f"{name}: {options.workers} threads {threads:.0f} MB/s, {options.workers} Ray workers {workers:.0f} MB/s: "
        f"{workers / threads:.2f} (medians {medians[0]:.0f} and {medians[1]:.0f}: {medians[1] / medians[0]:.2f})"
    )


def encode(path: Path, tokenizer: Tokenizer, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of encoding."""
    settings = EncodeSettings(shard_tokens=5_000_000, ray=kind, threads=options.workers)
    begin = time.perf_counter()
    encode_files([path], tokenizer, output, settings)
    return time.perf_counter() - begin


def vocab(path: Path, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of counting."""
    settings = VocabSettings(vocab_size=300, held_out="0", ray=kind, threads=options.workers)
    return train_tokenizer([path], output, settings).training.counting_seconds


def constants(sample: Path) -> None:
    """What a part's counts take, and how fast they are joined."""
    config = TrainingConfig(300, [SEPARATOR])
    counts = count_part(TextFile(sample), config)
    size = sum(entries.nbytes + arena.nbytes for entries, arena in counts.tables)
    pretokens = sum(len(entries) // 3 for entries, _ in counts.tables)
    with tempfile.TemporaryDirectory() as folder:
        counter = counter_for(config, MemoryBudget(None), SpilledRuns(Path(folder)), threads=1)
        counts.add_to(counter)
        begin = time.process_time()
        for _ in range(20):
            counts.add_to(counter)
        seconds = (time.process_time() - begin) / 20
    print(
        f"counts of {counts.bytes_counted / 1e6:.0f} MB: {pretokens:,} pretokens in {size / 1e6:.1f} MB, joined at "
        f"{pretokens / seconds / 1e6:.1f} M pretokens/s"
    )


if __name__ == "__main__":
    main()
