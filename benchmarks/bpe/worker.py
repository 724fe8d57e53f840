"""One package's side of one measurement, in a process of its own: `python -m benchmarks.bpe.worker PACKAGE JOB`.

The job is a JSON object: `kind` names the function below, the rest are its arguments. Prints one JSON object: seconds
by discipline, what was worked on, digests of the ids, and the most memory that was held.
"""

import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bpe.corpus import SEPARATOR, read_documents
from benchmarks.bpe.digests import as_batch, digest, digests_of

# NumPy and the packages are imported where they are needed: what a first call brings with it is part of its time.

SENTENCE = "Once upon a time, there were 12 foxes; they didn't know what it's like.\n"
_SHORT_CALLS = 1000


def training(package: str, *, corpus: str, vocab_size: int, again: bool) -> dict[str, Any]:
    """Learn a vocabulary, import included, and once more in the same process."""
    from benchmarks.bpe.trainers import TRAINERS

    trainer, path = TRAINERS[package], Path(corpus)
    first, result = _timed(lambda: trainer.train(path, vocab_size))
    peak = _peak_memory()
    tokens = [] if trainer.tokens is None else sorted({bytes(token).hex() for token in trainer.tokens(result)})
    seconds = {"first": first}
    if again:
        del result
        seconds["again"], result = _timed(lambda: trainer.train(path, vocab_size))
    extra = {}
    if package == "ownlm":
        extra = {"distinct words": result.report.distinct_words}
    return {"seconds": seconds, "bytes": path.stat().st_size, "peak": peak, "tokens": tokens, **extra}


def documents(
    package: str, *, folder: str, corpus: str, max_bytes: int, marks: list[int], again: bool
) -> dict[str, Any]:
    """Encode the documents of a corpus in one call."""
    texts = list(read_documents(Path(corpus), max_bytes))
    encoder = _fresh(package, folder)
    seconds = {}
    seconds["first"], result = _timed(lambda: encoder.batch(texts))
    digests = digests_of(result, texts, marks)
    if again:
        del result
        seconds["again"], _ = _timed(lambda: encoder.batch(texts))
    return {"seconds": seconds, "bytes": sum(len(text.encode()) for text in texts), "digests": digests}


def long_string(package: str, *, folder: str, corpus: str, max_bytes: int, again: bool) -> dict[str, Any]:
    """Encode one string."""
    text = "".join(read_documents(Path(corpus), max_bytes))[:max_bytes]
    encoder = _fresh(package, folder)
    seconds = {}
    seconds["first"], ids = _timed(lambda: encoder.one(text))
    if again:
        seconds["again"], _ = _timed(lambda: encoder.one(text))
    return {"seconds": seconds, "bytes": len(text.encode()), "digests": digests_of(as_batch(ids), [text])}


def short_text(package: str, *, folder: str, corpus: str, num_bytes: int) -> dict[str, Any]:
    """Encode a text of a line or two again and again: seconds a call."""
    text = next(read_documents(Path(corpus))).strip().encode()[:num_bytes].decode(errors="ignore")
    encoder = _fresh(package, folder)
    encode = encoder.short
    encode(text)
    seconds = min(_timed(lambda: [encode(text) for _ in range(_SHORT_CALLS)])[0] for _ in range(5)) / _SHORT_CALLS
    return {"seconds": {"again": seconds}, "digests": digests_of([encode(text)], [text])}


def corpus_file(package: str, *, folder: str, corpus: str) -> dict[str, Any]:
    """Encode a corpus file to a token file."""
    import numpy as np

    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        small, target = Path(first) / "small.txt", Path(second) / "corpus.bin"
        small.write_text(f"{SENTENCE}{SEPARATOR}" * 2)
        _fresh(package, folder).file(small, Path(first) / "small.bin")
        encoder = _fresh(package, folder)
        seconds, _ = _timed(lambda: encoder.file(Path(corpus), target))
        peak = _peak_memory()
        ids = np.fromfile(target, np.uint16)
    end_of_text = json.loads((Path(folder) / "vocabulary.json").read_text())["end of text"]
    plain = ids[ids != end_of_text].astype(np.uint32)  # ours ends each document with one, others leave it out
    hashed = digest(plain.tobytes())
    return {
        "seconds": {"first": seconds}, "bytes": Path(corpus).stat().st_size, "peak": peak, "digests": {"all": hashed},
    }  # fmt: skip


def decoding(package: str, *, folder: str, again: bool) -> dict[str, Any]:
    """Decode one long array of ids, and a batch."""
    import numpy as np

    encoder = _fresh(package, folder)
    array = np.load(Path(folder) / "ids.npy")
    ids = encoder.ids(array)
    seconds, digests = {}, {}
    for name in ("to_bytes", "to_text"):
        decode = getattr(encoder, name)
        if decode is None:
            continue
        seconds[f"{name} first"], decoded = _timed(partial(decode, ids))
        raw = decoded.encode() if isinstance(decoded, str) else decoded
        digests[name] = digest(raw)
        if again:
            seconds[f"{name} again"], _ = _timed(partial(decode, ids))
    if encoder.texts is not None:
        ends = np.load(Path(folder) / "ends.npy")
        batch = [encoder.ids(part) for part in np.split(array[: ends[-1]], ends[:-1])]
        seconds["batch first"], texts = _timed(lambda: encoder.texts(batch))
        digests["batch"] = digest("".join(texts).encode())
        if again:
            seconds["batch again"], _ = _timed(lambda: encoder.texts(batch))
    return {"seconds": seconds, "ids": len(array), "digests": digests}


def start(package: str, *, folder: str, corpus: str) -> dict[str, Any]:
    """Import the package, open the vocabulary and encode a first text; ours also learns a vocabulary."""
    seconds = {}
    seconds["import"], _ = _timed(lambda: importlib.import_module("shared.bpe" if package == "ownlm" else package))
    from benchmarks.bpe.encoders import ENCODERS

    seconds["open"], encoder = _timed(lambda: ENCODERS[package](Path(folder)))
    seconds["encode"], _ = _timed(lambda: encoder.short(SENTENCE))
    if package == "ownlm":
        from benchmarks.bpe.trainers import TRAINERS

        seconds["learn"], _ = _timed(lambda: TRAINERS[package].train(Path(corpus), 1000))
    return {"seconds": seconds}


def _fresh(package: str, folder: str) -> Any:
    """A tokenizer that has seen no text, in a process that has run the package's code."""
    from benchmarks.bpe.encoders import ENCODERS

    used = ENCODERS[package](Path(folder))
    used.short(SENTENCE)
    used.one(SENTENCE)
    used.batch([SENTENCE, SENTENCE])
    for decode in filter(None, (used.to_bytes, used.to_text)):
        decode(used.ids(_some_ids()))
    return ENCODERS[package](Path(folder))


def _some_ids() -> Any:
    import numpy as np

    return np.frombuffer(SENTENCE.encode(), np.uint8).astype(np.uint32)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def _peak_memory() -> int:
    """The most bytes that this process has held. What it inherits by getrusage is its parent's, hence Linux's own."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _use_threads(threads: int) -> None:
    """Give the packages as many processors as the discipline has threads, whatever setting they listen to."""
    for variable in ("RAYON_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def main() -> None:
    """Run the job of the command line."""
    package, job = sys.argv[1], json.loads(sys.argv[2])
    kinds: tuple[Callable[..., dict[str, Any]], ...] = (
        training, documents, long_string, short_text, corpus_file, decoding, start,
    )  # fmt: skip
    _use_threads(job.pop("threads"))
    kind = {kind.__name__: kind for kind in kinds}[job.pop("kind")]
    print(json.dumps(kind(package, **job)))


if __name__ == "__main__":
    main()
