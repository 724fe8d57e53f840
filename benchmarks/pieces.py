"""A SentencePiece vocabulary with byte fallback: `python -m benchmarks.pieces tokenizer.model TEXT...`.

Ours beside `sentencepiece` and Hugging Face's `tokenizers`, each on one thread and with the same vocabulary; ids are
compared. Rates are by CPU time: the first pass of a tokenizer that has seen no text, and the median of those that
follow. `tokenizers` reads a part of the text. Needs the extra `bench`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.host import describe_machine, installed_versions
from benchmarks.inputs import existing_file
from benchmarks.report import table
from shared.bpe import Tokenizer

_DOCUMENT = 4_000  # characters
_PART = 10  # of the text, for the slowest
_SEPARATOR = "<|endoftext|>"

Batch = Callable[[list[str]], list[list[int]]]


def main() -> int:
    """Measure and report: 0 if all ids are equal, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=existing_file, help="a tokenizer.model of BPE with byte fallback")
    parser.add_argument("texts", type=existing_file, nargs="+")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="that are read of each text")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rows, results, equal = [], {}, True
    for path in options.texts:
        documents = _documents(path, options.bytes)
        rates: dict[str, tuple[float, float]] = {}
        expected: list[list[int]] = []
        for name, batch in _encoders(options.model):
            step = _PART if name == "tokenizers" else 1
            rates[name] = _rates(batch, documents[::step], options.rounds)
            ids = batch(documents[::step])
            expected = expected or ids
            equal = equal and ids == expected[::step]
        results[path.name] = rates
        rows.append([path.name, *(f"{first:.1f}, {again:.1f}" for first, again in rates.values())])
    names = list(next(iter(results.values())))
    print(table(["MB/s: first pass, again", *names], rows))
    versions = installed_versions(["sentencepiece", "tokenizers", "numba"])
    about = {"machine": describe_machine(), "versions": versions, "equal ids": equal}
    print("\n" + json.dumps(about | {"results": results}))
    return not equal


def _documents(path: Path, size: int) -> list[str]:
    text = path.read_bytes()[:size].decode(errors="ignore")
    if _SEPARATOR in text:
        return text.split(_SEPARATOR)
    return [text[place : place + _DOCUMENT] for place in range(0, len(text), _DOCUMENT)]


def _encoders(model: Path) -> Iterator[tuple[str, Batch]]:
    """New ones, that have seen no text."""
    import sentencepiece
    import tokenizers

    ours = Tokenizer.from_files(model)
    ours.warm_up()
    yield "ours", lambda texts: [ids.tolist() for ids in ours.encode_batch_to_numpy(texts, max_threads=1)]
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    yield "sentencepiece", lambda texts: theirs.encode(texts, num_threads=1)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        peer = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    yield "tokenizers", lambda texts: [each.ids for each in peer.encode_batch(texts, add_special_tokens=False)]


def _rates(batch: Batch, documents: list[str], rounds: int) -> tuple[float, float]:
    """Megabytes a second of CPU time: of the first pass, and the median of the others."""
    size = sum(len(document.encode()) for document in documents) / 1e6
    seconds = []
    for _ in range(rounds + 1):
        started = time.process_time()
        batch(documents)
        seconds.append(time.process_time() - started)
    return size / seconds[0], size / statistics.median(seconds[1:])


if __name__ == "__main__":
    raise SystemExit(main())
