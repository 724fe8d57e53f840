import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bpe import debian
from benchmarks.bpe.corpus import SEPARATOR, gather, read_documents, without_repeats, write_slice

LONG = "A paragraph of more than sixty characters, which must not be there a second time. "


def test_a_long_paragraph_is_kept_once_and_a_heading_ten_times():
    texts = [f"Heading\n\n{LONG * 5}{n}\n\n{LONG}" for n in range(12)]
    found = list(without_repeats(texts, Counter()))
    paragraphs = Counter("\n\n".join(found).split("\n\n"))
    assert paragraphs[LONG.strip()] == 1
    assert paragraphs["Heading"] == 10
    assert sum(count for text, count in paragraphs.items() if len(text) > 60) == 13


def test_repeats_are_seen_across_calls():
    seen: Counter[bytes] = Counter()
    assert list(without_repeats([LONG * 5], seen)) == [(LONG * 5).strip()]
    assert list(without_repeats([LONG * 5], seen)) == []


def test_separators_in_the_text_are_taken_out():
    assert list(without_repeats([f"{LONG * 3}{SEPARATOR}{LONG * 3}"], Counter())) == [(LONG * 6).strip()]


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive with two packages, the second of which repeats a part of the first."""
    first = [f"first {n} " + LONG * 6 for n in range(30)]
    contents = {
        debian.PACKAGES[1]: first,
        debian.PACKAGES[3]: [*first[:10], *(f"second {n} " + LONG * 6 for n in range(30))],
    }

    def find(name: str) -> debian.Package | None:
        return debian.Package(name, f"1.{len(name)}") if name in contents else None

    def documents(package: debian.Package) -> Iterator[str]:
        yield from contents[package.name]

    monkeypatch.setattr(debian, "find", find)
    monkeypatch.setattr(debian, "documents", documents)


@pytest.mark.usefixtures("archive")
def test_the_corpus_is_gathered_without_repeats_and_listed(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    data.joinpath("tales.txt").write_text(f"{'Tale ' + LONG * 4}\n{SEPARATOR}\n{'Tale ' + LONG * 4}\n{SEPARATOR}\n")
    contents = gather(data, tmp_path / "one" / "corpus.txt", 25_000)
    texts = [text.strip() for text in read_documents(tmp_path / "one" / "corpus.txt")]
    assert len(texts) == len(set(texts)) == contents["documents"] == 61
    assert list(contents["packages"]) == [debian.PACKAGES[1], debian.PACKAGES[3]]
    assert contents["bytes"] == (tmp_path / "one" / "corpus.txt").stat().st_size >= 25_000
    assert gather(data, tmp_path / "two" / "corpus.txt", 25_000) == contents
    assert json.loads((tmp_path / "two" / "corpus.json").read_text()) == contents


@pytest.mark.usefixtures("archive")
def test_no_more_packages_are_taken_than_needed(tmp_path: Path):
    contents = gather(tmp_path / "none", tmp_path / "corpus.txt", 10_000)
    assert list(contents["packages"]) == [debian.PACKAGES[1]]


@pytest.mark.usefixtures("archive")
def test_too_little_text_is_told(tmp_path: Path):
    with pytest.raises(SystemExit, match=r"only 0 MB .* of the 10 MB wanted.*--corpus"):
        gather(tmp_path / "none", tmp_path / "corpus.txt", 10**7)
    assert not (tmp_path / "corpus.txt").exists()


def test_a_system_without_apt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no apt-get"):
        gather(tmp_path / "none", tmp_path / "corpus.txt", 10**7)


def test_documents_are_read_whole_and_up_to_a_place(corpus: Path):
    everything = corpus.read_text("utf-8").split(SEPARATOR)
    assert list(read_documents(corpus)) == everything
    length = len((everything[0] + SEPARATOR + everything[1] + SEPARATOR).encode())
    assert list(read_documents(corpus, length)) == everything[:2]
    assert list(read_documents(corpus, length + 1)) == everything[:3]


def test_a_corpus_grows_by_new_words(corpus: Path, tmp_path: Path):
    size = corpus.stat().st_size
    small = write_slice(corpus, tmp_path / "small.txt", size // 2).read_text("utf-8")
    large = write_slice(corpus, tmp_path / "large.txt", 4 * size).read_text("utf-8")
    assert corpus.read_text("utf-8").startswith(small)
    assert large.startswith(small)
    assert 4 * size <= len(large.encode()) < 4.2 * size
    before, after = (Counter(re.findall(r"\w+", text)) for text in (corpus.read_text("utf-8"), large))
    assert after["number"] > before["number"]
    assert len(after) > 1.05 * len(before)


def test_a_corpus_does_not_grow_without_end(tmp_path: Path):
    path = tmp_path / "tiny.txt"
    path.write_text("tiny")
    with pytest.raises(SystemExit, match="too small"):
        write_slice(path, tmp_path / "large.txt", 10**6)
