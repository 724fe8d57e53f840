"""What is measured, in full and in short."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bpe.corpus import SEPARATOR, read_documents, write_slice
from benchmarks.bpe.encoders import ENCODERS, RANKS_FILE
from benchmarks.bpe.jobs import OURS, ROOT, Job
from benchmarks.bpe.trainers import TRAINERS

SECTIONS = ("training", "encoding", "files", "decoding", "start", "scaling")
SCALING_MB = (10, 50, 200, 500, 1000, 2000)
VOCAB_SIZE = 32000
_MB = 10**6
_STRING_BYTES = 10 * _MB
_DECODED_IDS = 10**7
_SHORT_BYTES = 200
_SMALL_CORPUS = "small.txt"
# Of the corpus, for those that would take minutes for all of it.
_SLICES = {"tokenizers": 20, "morpheme": 20, "kitoken": 50, "tiktoken": 50, "tuetoken": 50}
_TRAINING_SLICE_MB = 50
_FAST_TRAINERS = (OURS, "gigabpe", "gigatoken")
_QUICK_ENCODERS = (OURS, "gigatoken", "tiktoken")
_FILE_ENCODERS = (OURS, "gigatoken", "gigatok", "tokie")


def full(section: str, corpus: Path, stories: Path, folder: Path) -> list[Job]:
    """The jobs of a section; those of scaling are made one by one."""
    encoders = tuple(ENCODERS)
    return {
        "training": [
            _training("32000", corpus, 32000, tuple(TRAINERS), 3, _slices_of(corpus, folder, "bpeasy")),
            _training("10000", corpus, 10000, tuple(TRAINERS), 3, _slices_of(corpus, folder, "bpeasy", "tokenizers")),
            _training("stories", stories, 10000, tuple(TRAINERS), 5),
        ],
        "encoding": _encoding(corpus, stories, folder, encoders, repeats=3),
        "files": _files(corpus, folder, _FILE_ENCODERS, repeats=3),
        "decoding": [
            Job("decoding", "decoding", encoders, {"folder": str(folder), "again": True}, threads=2, repeats=2)
        ],
        "start": [_start(folder, encoders)],
        "scaling": [],
    }[section]


def quick(section: str, corpus: Path, stories: Path, folder: Path) -> list[Job]:
    """What fits in two minutes: the fastest peers, and less text."""
    return {
        "training": [
            _training(str(VOCAB_SIZE), corpus, VOCAB_SIZE, _FAST_TRAINERS, 1),
            _training("stories", stories, 10000, _FAST_TRAINERS, 3),
        ],
        "encoding": _encoding(corpus, stories, folder, _QUICK_ENCODERS, repeats=2),
        "files": _files(corpus, folder, _FILE_ENCODERS[:2], repeats=2),
        "decoding": [],
        "start": [],
        "scaling": [],
    }[section]


def prepare(corpus: Path, folder: Path) -> None:
    """Write what the jobs need: the vocabulary that all encode with, ids that all decode, and a small text."""
    from shared.bpe import train_bpe_from_sources
    from shared.bpe.corpus import MappedFile

    tokenizer = train_bpe_from_sources([MappedFile(corpus)], VOCAB_SIZE, special_tokens=[SEPARATOR]).tokenizer
    tokenizer.save(folder)
    tokenizer.to_tiktoken(folder / RANKS_FILE)
    write_slice(corpus, folder / _SMALL_CORPUS, _MB)
    (folder / "vocabulary.json").write_text(json.dumps({"end of text": tokenizer.end_of_text_id}))
    batch = tokenizer.encode_batch_to_numpy(list(read_documents(corpus, 5 * _DECODED_IDS)))
    ends = np.cumsum([len(ids) for ids in batch])
    np.save(folder / "ids.npy", np.concatenate(batch)[:_DECODED_IDS].astype(np.uint32))
    np.save(folder / "ends.npy", ends[ends <= _DECODED_IDS])


@contextmanager
def nothing_compiled(folder: Path) -> Iterator[Job]:
    """The job of a first start ever: our sources alone, without what Python and Numba have kept."""
    copy = folder / "sources"
    for package in ("shared", "trainer", "benchmarks"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    job = _start(folder, (OURS,))
    try:
        yield replace(job, name="start from nothing", repeats=1, root=copy)
    finally:
        shutil.rmtree(copy)


@contextmanager
def scaling(corpus: Path, folder: Path, megabytes: int) -> Iterator[list[Job]]:
    """Learning and encoding at one size, with our package alone; the text is there as long as the jobs are."""
    path = write_slice(corpus, folder / f"scaling-{megabytes}.txt", megabytes * _MB)
    try:
        yield [
            Job(f"scaling training {megabytes}", "training", (OURS,),
                {"corpus": str(path), "vocab_size": VOCAB_SIZE, "again": False}),
            Job(f"scaling file {megabytes}", "corpus_file", (OURS,), {"folder": str(folder), "corpus": str(path)}),
        ]  # fmt: skip
    finally:
        path.unlink()


def _training(
    name: str, corpus: Path, vocab_size: int, packages: tuple[str, ...], repeats: int,
    slices: Mapping[str, Path] | None = None,
) -> Job:  # fmt: skip
    arguments = {"corpus": str(corpus), "vocab_size": vocab_size, "again": True}
    slow = {
        package: {"again": False, "corpus": str((slices or {}).get(package, corpus))}
        for package in packages
        if package not in _FAST_TRAINERS
    }
    return Job(f"training {name}", "training", packages, arguments, repeats=repeats, slow=slow)


def _slices_of(corpus: Path, folder: Path, *packages: str) -> dict[str, Path]:
    """A part of the corpus for packages that would take minutes for all of it."""
    path = folder / "training.txt"
    if not path.exists():
        write_slice(corpus, path, min(_TRAINING_SLICE_MB * _MB, corpus.stat().st_size // 2))
    return dict.fromkeys(packages, path)


def _encoding(corpus: Path, stories: Path, folder: Path, packages: tuple[str, ...], repeats: int) -> list[Job]:
    corpus_bytes, stories_bytes = (path.stat().st_size for path in (corpus, stories))
    marks = sorted({size * _MB for size in _SLICES.values()})
    slow = {
        package: {"again": False, "max_bytes": min(size * _MB, corpus_bytes)}
        for package, size in _SLICES.items()
        if package in packages
    }
    once = {package: {"again": False} for package in slow}
    on_corpus = {"folder": str(folder), "corpus": str(corpus)}
    on_stories = {"folder": str(folder), "corpus": str(stories), "max_bytes": stories_bytes, "marks": []}
    all_documents = {**on_corpus, "max_bytes": corpus_bytes, "marks": marks, "again": True}
    string = {**on_corpus, "max_bytes": min(_STRING_BYTES, corpus_bytes), "again": True}
    return [
        Job("documents", "documents", packages, all_documents, threads=1, repeats=repeats, slow=slow),
        Job("batch", "documents", packages, all_documents, threads=2, repeats=repeats, slow=slow),
        Job("string", "long_string", packages, string, threads=2, repeats=repeats, slow=once),
        Job("stories", "documents", packages, {**on_stories, "again": True}, threads=1, repeats=repeats, slow=once),
        Job("short", "short_text", packages, {**on_corpus, "num_bytes": _SHORT_BYTES}, threads=1, repeats=repeats),
    ]


def _files(corpus: Path, folder: Path, packages: tuple[str, ...], repeats: int) -> list[Job]:
    arguments = {"folder": str(folder), "corpus": str(corpus)}
    return [
        Job(f"file {threads}", "corpus_file", packages, arguments, threads=threads, repeats=repeats)
        for threads in (1, 2)
    ]


def _start(folder: Path, packages: tuple[str, ...]) -> Job:
    arguments = {"folder": str(folder), "corpus": str(folder / _SMALL_CORPUS)}
    return Job("start", "start", packages, arguments, repeats=3)
