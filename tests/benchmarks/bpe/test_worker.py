from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bpe import plan, worker
from benchmarks.bpe.digests import digests_of, flat

PACKAGES = ("ownlm", "tiktoken", "tokenizers")


@pytest.fixture
def folder(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `plan.prepare` writes."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    path = tmp_path / "vocabulary"
    path.mkdir()
    plan.prepare(plan.Inputs(path, corpus, corpus))
    return path


def test_packages_give_the_same_ids(corpus: Path, folder: Path):
    size = corpus.stat().st_size
    where = {"folder": str(folder), "corpus": str(corpus)}

    def digests(kind: Any, **arguments: Any) -> list[dict[str, str]]:
        return [kind(package, **where, **arguments)["digests"] for package in PACKAGES]

    ours, *others = digests(worker.documents, max_bytes=size, marks=[size // 2, size * 2], again=True)
    assert set(ours) == {"all", str(size // 2)}
    assert others == [ours, ours]
    ours, *others = digests(worker.long_string, max_bytes=size // 2, again=False)
    assert others == [ours, ours]
    ours, *others = digests(worker.short_text, num_bytes=20)
    assert others == [ours, ours]


def test_the_slice_of_a_slow_package_is_a_mark_of_ours(corpus: Path, folder: Path):
    size = corpus.stat().st_size
    where = {"folder": str(folder), "corpus": str(corpus), "marks": [size // 2]}
    ours = worker.documents("ownlm", **where, max_bytes=size, again=False)
    theirs = worker.documents("tiktoken", **where, max_bytes=size // 2, again=False)
    assert theirs["bytes"] < ours["bytes"]
    assert theirs["digests"][str(size // 2)] == ours["digests"][str(size // 2)] == theirs["digests"]["all"]


def test_a_token_file_holds_the_ids_of_the_documents(corpus: Path, folder: Path):
    where = {"folder": str(folder), "corpus": str(corpus)}
    documents = worker.documents("ownlm", **where, max_bytes=corpus.stat().st_size, marks=[], again=False)
    result = worker.corpus_file("ownlm", **where)
    assert result["digests"] == documents["digests"]
    assert result["bytes"] == corpus.stat().st_size


def test_packages_decode_to_the_same_text(folder: Path):
    results = {package: worker.decoding(package, folder=str(folder), again=False) for package in PACKAGES}
    ours = results["ownlm"]["digests"]
    assert set(ours) == {"to_bytes", "to_text", "batch"}
    assert ours["to_bytes"] == ours["to_text"] == ours["batch"]
    for package in PACKAGES[1:]:
        theirs = results[package]["digests"]
        assert theirs.items() <= ours.items()
        assert "to_text" in theirs


def test_a_start_is_told_in_steps(corpus: Path, folder: Path):
    ours = worker.start("ownlm", folder=str(folder), corpus=str(corpus))
    theirs = worker.start("tiktoken", folder=str(folder), corpus=str(corpus))
    assert set(ours["seconds"]) == {"import", "open", "encode", "learn"}
    assert set(theirs["seconds"]) == {"import", "open", "encode"}


def test_whatever_packages_give_is_one_array_of_ids():
    offsets, lengths = np.array([0, 2, 2, 3]), np.array([2, 0, 1])
    as_bytes = (np.array([7, 8, 9], np.uint32).tobytes(), offsets.astype(np.int64).tobytes())
    for result in ([[7, 8], [], [9]], (np.array([7, 8, 9]), offsets), (np.array([7, 8, 9]), lengths), as_bytes):
        ids, ends = flat(result)
        assert (ids.tolist(), ends.tolist()) == ([7, 8, 9], [2, 2, 3])


def test_digests_tell_ids_apart():
    assert digests_of([[7, 8]], ["text"]) == digests_of([[7, 8]], ["text"]) != digests_of([[7, 9]], ["text"])
