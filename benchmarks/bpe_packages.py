"""One package's side of the benchmark, in a process of its own: `python bpe_packages.py PACKAGE JOB`, JSON on stdout.

The job is a JSON object: the kind of work, the corpus, the folder with the vocabulary in each format.
"""

# Each class is one package, its methods are the kinds of work.
# ruff: noqa: D101, D102

import base64
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

SEPARATOR = "<|endoftext|>"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Ownlm:
    """Ours."""

    def __init__(self, folder: Path):
        from shared.bpe import Tokenizer

        self.tokenizer = Tokenizer.from_files(folder / "tokenizer.json")
        self.tokenizer.encode("a first call, so that kernels are loaded as in the compiled packages")
        self.tokenizer = Tokenizer.from_files(folder / "tokenizer.json")
        self.tokenizer.encode("")

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_to_numpy(text)

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch_to_numpy(texts)

    def documents(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch_to_numpy(texts, max_threads=1)

    def file(self, path: Path, output: Path) -> None:
        from trainer.encoding import encode_files

        encode_files([path], self.tokenizer, output)

    @staticmethod
    def train(path: Path, vocab_size: int) -> None:
        from trainer.vocabulary import learn_vocabulary

        with tempfile.TemporaryDirectory() as folder:
            learn_vocabulary([path], Path(folder) / "out", vocab_size=vocab_size)


class Gigatoken:
    def __init__(self, folder: Path):
        import gigatoken

        self.tokenizer = gigatoken.Tokenizer(str(folder / "tokenizer.json"))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode(text)

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch(texts)

    def documents(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch(texts, parallel=False)

    def file(self, path: Path, output: Path) -> None:
        import gigatoken

        ids = self.tokenizer.encode_files(gigatoken.TextFileSource([path], separator=SEPARATOR))
        flat = np.asarray(ids.layout.content.data, np.uint16)
        output.mkdir()
        flat.tofile(output / "train.bin")

    @staticmethod
    def train(path: Path, vocab_size: int) -> None:
        import gigatoken

        source = gigatoken.TextFileSource([path], separator=SEPARATOR)
        gigatoken.train_bpe(source, vocab_size, [SEPARATOR])


class Tiktoken:
    def __init__(self, folder: Path):
        import tiktoken

        lines = (folder / "vocabulary.tiktoken").read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
        self.tokenizer = tiktoken.Encoding("bench", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_to_numpy(text, disallowed_special=())

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_ordinary_batch(texts, num_threads=2)

    def documents(self, texts: list[str]) -> Any:
        return [self.tokenizer.encode_ordinary(text) for text in texts]


class HuggingFace:
    def __init__(self, folder: Path):
        import os

        from tokenizers import Tokenizer

        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode(text).ids

    def batch(self, texts: list[str]) -> Any:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]

    def documents(self, texts: list[str]) -> Any:
        return [self.tokenizer.encode(text).ids for text in texts]

    @staticmethod
    def train(path: Path, vocab_size: int) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=[SEPARATOR], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(path.read_text("utf-8").split(SEPARATOR), trainer)


class Gigabpe:
    @staticmethod
    def train(path: Path, vocab_size: int) -> None:
        import gigabpe

        gigabpe.train_bpe(str(path), vocab_size, [SEPARATOR])


class Rustbpe:
    @staticmethod
    def train(path: Path, vocab_size: int) -> None:
        import rustbpe

        tokenizer = rustbpe.Tokenizer()
        texts = path.read_text("utf-8").split(SEPARATOR)
        tokenizer.train_from_iterator(iter(texts), vocab_size - 1, pattern=GPT2)


PACKAGES: dict[str, Any] = {
    "ownlm": Ownlm,
    "gigatoken": Gigatoken,
    "tiktoken": Tiktoken,
    "tokenizers": HuggingFace,
    "gigabpe": Gigabpe,
    "rustbpe": Rustbpe,
}


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long work takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def digest(batch: Iterable[Any]) -> str:
    """A hash of the ids of texts."""
    hashed = hashlib.sha256()
    for ids in batch:
        hashed.update(np.asarray(ids, np.uint32).tobytes())
    return hashed.hexdigest()[:16]


def encoding(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """All disciplines of encoding: the first pass always with a tokenizer that has seen nothing."""
    folder = Path(job["folder"])
    texts = [text for text in Path(job["corpus"]).read_text("utf-8").split(SEPARATOR) if text]
    long = "".join(texts)[: job["long"]]
    short = texts[0][:200]
    results: dict[str, Any] = {}
    tokenizer = package(folder)
    results["documents, 1 thread, first"], ids = seconds(lambda: tokenizer.documents(texts))
    results["ids"] = digest(ids)
    results["documents, 1 thread, again"], _ = seconds(lambda: tokenizer.documents(texts))
    results["short text"] = (
        min(seconds(lambda: [tokenizer.one(short) for _ in range(1000)])[0] for _ in range(3)) / 1000
    )
    tokenizer = package(folder)
    results["one long string, first"], _ = seconds(lambda: tokenizer.one(long))
    results["one long string, again"], _ = seconds(lambda: tokenizer.one(long))
    tokenizer = package(folder)
    results["batch, first"], _ = seconds(lambda: tokenizer.batch(texts))
    results["batch, again"], _ = seconds(lambda: tokenizer.batch(texts))
    if hasattr(package, "file"):
        tokenizer = package(folder)
        with tempfile.TemporaryDirectory() as output:
            results["file to token file, first"], _ = seconds(
                lambda: tokenizer.file(Path(job["corpus"]), Path(output) / "tokens")
            )
    return results


def training(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Training once, and once more in the same process."""
    work = lambda: package.train(Path(job["corpus"]), job["vocab_size"])  # noqa: E731
    first, _ = seconds(work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    again = seconds(work)[0] if job["again"] else first
    size = job["vocab_size"]
    return {f"training {size}, first": first, f"training {size}, again": again, "peak MB": peak / 1024}


if __name__ == "__main__":
    name, description = sys.argv[1], json.loads(sys.argv[2])
    run = {"encoding": encoding, "training": training}[description["kind"]]
    print(json.dumps(run(PACKAGES[name], description)))
