"""What is measured, in full and in short."""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
# Of the corpus, for those that would take minutes for all of it.
_SLICES = {"tokenizers": 20, "morpheme": 20, "kitoken": 50, "tiktoken": 50, "tuetoken": 50}
_PART_MB = 50
_STORIES_MB = 50
_FAST_TRAINERS = (OURS, "gigabpe", "gigatoken")
_QUICK_ENCODERS = (OURS, "gigatoken", "tiktoken")
_FILE_ENCODERS = (OURS, "gigatoken", "gigatok", "tokie")


@dataclass(frozen=True)
class Inputs:
    """What the jobs work on.

    Attributes:
        folder: What `prepare` writes.
        corpus: The text.
        stories: Text of few words.
    """

    folder: Path
    corpus: Path
    stories: Path

    @property
    def part(self) -> Path:
        """A part of the corpus, to learn from, for packages that would take minutes for all of it."""
        return self.folder / "part.txt"

    @property
    def more_stories(self) -> Path:
        """Enough stories to learn from."""
        return self.folder / "more-stories.txt"

    @property
    def small(self) -> Path:
        """Text that is learned from in no time."""
        return self.folder / "small.txt"


def full(section: str, inputs: Inputs) -> list[Job]:
    """The jobs of a section, but for those that need more than `prepare` writes: see below."""
    encoders = tuple(ENCODERS)
    if section == "training":
        return [
            _training(inputs, 32000, tuple(TRAINERS), repeats=3, on_part={"bpeasy"}),
            _training(inputs, 10000, tuple(TRAINERS), repeats=3, on_part={"bpeasy", "tokenizers"}),
            _training_on_stories(inputs, tuple(TRAINERS), repeats=5),
        ]
    if section == "encoding":
        return _encoding(inputs, encoders, repeats=3)
    if section == "files":
        return _files(inputs, _FILE_ENCODERS, repeats=3)
    if section == "decoding":
        return [Job("decoding", "decoding", encoders, {"folder": str(inputs.folder), "again": True}, repeats=2)]
    return [_start(inputs, encoders)] if section == "start" else []


def quick(section: str, inputs: Inputs) -> list[Job]:
    """What fits in two minutes: the fastest peers, and less text."""
    if section == "training":
        return [
            _training(inputs, VOCAB_SIZE, _FAST_TRAINERS, repeats=1),
            _training_on_stories(inputs, _FAST_TRAINERS, repeats=3),
        ]
    if section == "encoding":
        return _encoding(inputs, _QUICK_ENCODERS, repeats=2)
    return _files(inputs, _FILE_ENCODERS[:2], repeats=2) if section == "files" else []


def prepare(inputs: Inputs) -> None:
    """Write what the jobs need: the vocabulary that all encode with, ids that all decode, and smaller texts."""
    from shared.bpe import train_bpe_from_sources
    from shared.bpe.training import TextFile

    folder, corpus = inputs.folder, inputs.corpus
    tokenizer = train_bpe_from_sources([TextFile(corpus)], VOCAB_SIZE, special_tokens=[SEPARATOR]).tokenizer
    tokenizer.save(folder)
    tokenizer.to_tiktoken(folder / RANKS_FILE)
    (folder / "vocabulary.json").write_text(json.dumps({"end of text": tokenizer.end_of_text_id}))
    batch = tokenizer.encode_batch_to_numpy(list(read_documents(corpus, 5 * _DECODED_IDS)))
    ends = np.cumsum([len(ids) for ids in batch])
    np.save(folder / "ids.npy", np.concatenate(batch)[:_DECODED_IDS].astype(np.uint32))
    np.save(folder / "ends.npy", ends[ends <= _DECODED_IDS])
    write_slice(inputs.stories, inputs.more_stories, min(_STORIES_MB * _MB, 4 * inputs.stories.stat().st_size))
    half = corpus.stat().st_size // 2
    write_slice(corpus, inputs.part, min(_PART_MB * _MB, half))
    write_slice(corpus, inputs.small, min(_MB, half))


@contextmanager
def nothing_compiled(inputs: Inputs) -> Iterator[Job]:
    """The job of a first start ever: our sources alone, and empty folders wherever something may have been kept."""
    copy = inputs.folder / "sources"
    for package in ("shared", "trainer", "benchmarks"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    empty = copy / "cache"
    empty.mkdir()
    environment = dict.fromkeys(("OWNLM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"), str(empty))
    try:
        yield replace(_start(inputs, (OURS,)), name="start from nothing", repeats=1, root=copy, environment=environment)
    finally:
        shutil.rmtree(copy)


@contextmanager
def scaling(inputs: Inputs, megabytes: int) -> Iterator[list[Job]]:
    """Learning and encoding at one size, with our package alone; the text is there as long as the jobs are."""
    path = write_slice(inputs.corpus, inputs.folder / f"scaling-{megabytes}.txt", megabytes * _MB)
    try:
        yield [
            Job(f"scaling training {megabytes}", "training", (OURS,),
                {"corpus": str(path), "vocab_size": VOCAB_SIZE, "again": False}),
            Job(f"scaling file {megabytes}", "corpus_file", (OURS,),
                {"folder": str(inputs.folder), "corpus": str(path)}),
        ]  # fmt: skip
    finally:
        path.unlink()


def _training(
    inputs: Inputs, vocab_size: int, packages: tuple[str, ...], *, repeats: int, on_part: Collection[str] = ()
) -> Job:
    arguments = {"corpus": str(inputs.corpus), "vocab_size": vocab_size, "again": True}
    slow = {
        package: {"again": False, **({"corpus": str(inputs.part)} if package in on_part else {})}
        for package in packages
        if package not in _FAST_TRAINERS
    }
    return Job(f"training {vocab_size}", "training", packages, arguments, repeats=repeats, slow=slow)


def _training_on_stories(inputs: Inputs, packages: tuple[str, ...], *, repeats: int) -> Job:
    job = _training(replace(inputs, corpus=inputs.more_stories), 10000, packages, repeats=repeats)
    return replace(job, name="training stories")


def _encoding(inputs: Inputs, packages: tuple[str, ...], *, repeats: int) -> list[Job]:
    corpus_bytes, stories_bytes = (path.stat().st_size for path in (inputs.corpus, inputs.stories))
    marks = sorted({size * _MB for size in _SLICES.values()})
    slow = {
        package: {"again": False, "max_bytes": min(size * _MB, corpus_bytes)}
        for package, size in _SLICES.items()
        if package in packages
    }
    once = {package: {"again": False} for package in slow}
    on_corpus = {"folder": str(inputs.folder), "corpus": str(inputs.corpus)}
    on_stories = {**on_corpus, "corpus": str(inputs.stories), "max_bytes": stories_bytes, "marks": []}
    all_documents = {**on_corpus, "max_bytes": corpus_bytes, "marks": marks, "again": True}
    string = {**on_corpus, "max_bytes": min(_STRING_BYTES, corpus_bytes), "again": True}
    return [
        Job("documents", "documents", packages, all_documents, threads=1, repeats=repeats, slow=slow),
        Job("batch", "documents", packages, all_documents, threads=2, repeats=repeats, slow=slow),
        Job("string", "long_string", packages, string, threads=2, repeats=repeats, slow=once),
        Job("stories", "documents", packages, {**on_stories, "again": True}, threads=1, repeats=repeats, slow=once),
        Job("short", "short_text", packages, {**on_corpus, "num_bytes": _SHORT_BYTES}, threads=1, repeats=repeats),
    ]


def _files(inputs: Inputs, packages: tuple[str, ...], *, repeats: int) -> list[Job]:
    arguments = {"folder": str(inputs.folder), "corpus": str(inputs.corpus)}
    return [
        Job(f"file {threads}", "corpus_file", packages, arguments, threads=threads, repeats=repeats)
        for threads in (1, 2)
    ]


def _start(inputs: Inputs, packages: tuple[str, ...]) -> Job:
    arguments = {"folder": str(inputs.folder), "corpus": str(inputs.small)}
    return Job("start", "start", packages, arguments, repeats=3)
