"""Work on a Ray cluster of this machine beside the same without: python -m benchmarks.cluster.

`--model` prints the constants of one core and the table of docs/how-to/a-terabyte-of-text.md.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.host import describe_machine
from benchmarks.report import table
from shared.bpe import Tokenizer, train_bpe
from shared.bpe.training import PartCounts, TextFile, TrainingConfig, count_part
from shared.bpe.training.counter import CorpusCounter, counter_for
from shared.bpe.training.memory import MemoryBudget
from shared.bpe.training.spill import SpilledRuns
from trainer.cleaning.clean import clean_files
from trainer.cleaning.duplicates import DuplicateFinder
from trainer.cleaning.examination import Examined
from trainer.cleaning.signatures import HASHES, Banding
from trainer.console.progress import progress
from trainer.settings.clean import CleanSettings
from trainer.settings.encode import EncodeSettings
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files

SEPARATOR = "<|endoftext|>"
THRESHOLD = CleanSettings().near_duplicates
REPEATS = 3
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
        constants = measure(options.text)
        print(*describe_machine().values(), sep=", ")
        print(constants, repr(constants), sep="\n")
        print(table(HEADER, [terabyte(constants, nodes) for nodes in NODES]))
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
            "clean": lambda kind, n: clean(path, folder / f"c-{kind}-{n}", kind, workers=options.workers),
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
    """Seconds of encoding."""
    tokenizer = unused(tokenizer)
    settings = EncodeSettings(shard_tokens=5_000_000, ray=kind, threads=None if kind else options.workers)
    begin = time.perf_counter()
    encode_files([path], tokenizer, output, settings)
    return time.perf_counter() - begin


def unused(tokenizer: Tokenizer) -> Tokenizer:
    """The same one, that has seen no text, as the workers' have not."""
    other = Tokenizer(tokenizer.vocabulary)
    other.warm_up()
    return other


def vocab(path: Path, output: Path, kind: str | None, options: argparse.Namespace) -> float:
    """Seconds of counting."""
    settings = VocabSettings(vocab_size=300, held_out="0", ray=kind, threads=None if kind else options.workers)
    return train_tokenizer([path], output, settings).training.counting_seconds


def clean(path: Path, output: Path, kind: str | None, *, workers: int) -> float:
    """Seconds of both passes, and of comparing."""
    settings = CleanSettings(ray=kind, workers=None if kind else workers)
    begin = time.perf_counter()
    with progress(shown=False) as new_bar:
        clean_files([path], output, settings, new_bar, part_bytes=path.stat().st_size // 16)
    return time.perf_counter() - begin


SIZE, PART = 1e12, 256e6
CORES, NETWORK, DOLLARS = 32, 3e9, 1.5  # of a node: cores, bytes a second, price an hour
ENTRY_BYTES = 26  # of a pretoken's count on its way
TOKEN_BYTES = 2 / 4.4  # of token files for each byte of text
KEPT_BYTES = 450  # that the first pass of `clean` leaves of a document
COMPARED = 800_000  # documents
NODES = (2, 16, 128)
HEADER = ("nodes", "`clean`", "bound by", "`vocab`: counting", "bound by", "`encode`", "bound by", "all, $")


@dataclass(frozen=True)
class Constants:
    """What one core does, and what text is like.

    Attributes:
        counting: Bytes a second of `vocab`, before the merges.
        joining: Pretokens a second, where the counts of two parts become one.
        encoding: Bytes a second of `encode`.
        cleaning: Bytes a second of both passes of `clean`.
        comparing: Seconds a document, between the passes.
        document_bytes: Of a document.
        heaps_factor: Pretokens of a text are so many
        heaps_exponent: times a power of its bytes (Heaps' law).
    """

    counting: float
    joining: float
    encoding: float
    cleaning: float
    comparing: float
    document_bytes: float
    heaps_factor: float
    heaps_exponent: float

    def __str__(self) -> str:
        return (
            f"a core cleans {self.cleaning / 1e6:.0f} MB/s (both passes), counts {self.counting / 1e6:.0f} MB/s, "
            f"encodes {self.encoding / 1e6:.0f} MB/s, joins {self.joining / 1e6:.0f} million pretokens/s, "
            f"compares a document of {self.document_bytes / 1e3:.1f} KB in {self.comparing * 1e6:.1f} µs; "
            f"{PART / 1e6:.0f} MB have {self.pretokens(PART) / 1e3:.0f} thousand distinct pretokens, "
            f"whose number grows with the size of the text to the power {self.heaps_exponent:.2f}"
        )

    def pretokens(self, size: float) -> float:
        """Distinct pretokens of so many bytes."""
        return float(self.heaps_factor * size**self.heaps_exponent)


def measure(sample: Path) -> Constants:
    """Measure one core, by CPU time."""
    config = TrainingConfig(300, [SEPARATOR])
    data = sample.read_bytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        half, rest = folder / "half.txt", folder / "rest.txt"
        half.write_bytes(data[: data.rfind(SEPARATOR.encode(), 0, len(data) // 2)])
        rest.write_bytes(data[half.stat().st_size :])
        whole, *halves = (count_part(TextFile(path), config) for path in (sample, half, rest))
        tokenizer = train_bpe([data[:4_000_000].decode(errors="ignore")], 8192, special_tokens=[SEPARATOR]).tokenizer
        documents = random_documents(folder / "documents")
        seconds = {
            "counting": processor_seconds(lambda: partial(count_part, TextFile(sample), config)),
            "joining": processor_seconds(lambda: partial(halves[1].add_to, counter_of(halves[0], config))),
            "encoding": processor_seconds(lambda: encoding(sample, tokenizer, folder)),
            "cleaning": processor_seconds(lambda: partial(clean, sample, fresh(folder), None, workers=1)),
            "comparing": processor_seconds(
                lambda: partial(list, DuplicateFinder([documents], THRESHOLD, 1 << 40).find())
            ),
        }
    exponent = math.log2(distinct(whole) / distinct(halves[0]))
    return Constants(
        counting=len(data) / seconds["counting"],
        joining=distinct(halves[1]) / seconds["joining"],
        encoding=len(data) / seconds["encoding"],
        cleaning=len(data) / seconds["cleaning"],
        comparing=seconds["comparing"] / COMPARED,
        document_bytes=len(data) / (1 + data.count(SEPARATOR.encode())),
        heaps_factor=distinct(whole) / len(data) ** exponent,
        heaps_exponent=exponent,
    )


def processor_seconds(prepare: Callable[[], Callable[[], object]]) -> float:
    """The least time that processors take for what is prepared."""
    seconds = []
    for _ in range(REPEATS):
        job = prepare()
        begin = time.process_time()
        job()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def fresh(folder: Path) -> Path:
    """A new folder in another."""
    return Path(tempfile.mkdtemp(dir=folder))


def counter_of(counts: PartCounts, config: TrainingConfig) -> CorpusCounter:
    """A counter that has the counts of a part."""
    counter = counter_for(config, MemoryBudget(None), SpilledRuns(Path(tempfile.gettempdir())), threads=1)
    counts.add_to(counter)
    return counter


def distinct(counts: PartCounts) -> int:
    """Pretokens of a part."""
    return sum(int(edges[-1]) for _, edges in counts.tables)


def encoding(text: Path, tokenizer: Tokenizer, folder: Path) -> Callable[[], object]:
    """Encodes with one thread."""
    return partial(encode_files, [text], unused(tokenizer), fresh(folder), EncodeSettings(threads=1))


def random_documents(path: Path) -> Examined:
    """What the first pass of `clean` would keep of documents, of which a tenth are others again."""
    bands = Banding.for_threshold(THRESHOLD).bands
    draw = np.random.default_rng(0)
    copied = draw.integers(0, COMPARED * 9 // 10, COMPARED // 10)
    with path.open("wb") as file:
        file.write(json.dumps({"documents": COMPARED, "reasons": []}).encode().ljust(1 << 16))
        file.write(bytes(2 * COMPARED))  # none left for a reason
        for width in (8, 16, *[8] * bands, 2 * HASHES):  # sizes, digests, keys and signatures
            column = draw.integers(0, 256, (COMPARED, width), np.uint8)
            column[-len(copied) :] = column[copied]
            file.write(column.tobytes())
    return Examined(path, bands)


def terabyte(constants: Constants, nodes: int) -> tuple[str, ...]:
    """A row of the table: the longest of what runs at the same time, and the sum of what comes after one another."""
    cores, network = nodes * CORES, nodes * NETWORK
    documents = SIZE / constants.document_bytes
    cleaning = {
        "both passes": max(SIZE / (cores * constants.cleaning), 3 * SIZE / network),
        "comparing on the first node": documents * (constants.comparing + KEPT_BYTES / NETWORK),
    }
    joined = SIZE / PART * constants.pretokens(PART)
    counting = {
        "counting": SIZE / (cores * constants.counting),
        "reading": SIZE / network,
        "joining on the first node": joined / constants.joining,
        "network of the first node": joined * ENTRY_BYTES / NETWORK,
    }
    encoding = {
        "encoding": SIZE / (cores * constants.encoding),
        "reading and writing": SIZE * (1 + TOKEN_BYTES) / network,
    }
    seconds = sum(cleaning.values()), max(counting.values()), max(encoding.values())
    bounds = [max(stage, key=stage.__getitem__) for stage in (cleaning, counting, encoding)]
    cells = [cell for each, bound in zip(seconds, bounds, strict=True) for cell in (f"{each / 60:.1f} min", bound)]
    return str(nodes), *cells, f"{nodes * DOLLARS * sum(seconds) / 3600:.2f}"


if __name__ == "__main__":
    main()
