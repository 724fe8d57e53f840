"""`clean`: which documents stay, and what happens to odd ones."""

import gzip
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

import trainer.cleaning.clean as clean_module
import trainer.cleaning.duplicates as duplicates_module
import trainer.cleaning.examination as examination_module
from trainer.cleaning.clean import clean_files
from trainer.cleaning.corpus import Corpus, divide_inputs, tools_of
from trainer.cleaning.examination import examine
from trainer.cleaning.output import STATE, CleanOutput
from trainer.cleaning.report import CleaningReport, write_report
from trainer.cluster.processes import LostProcessError, run_in_processes
from trainer.console.progress import NewBar, progress
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.clean import CleanSettings
from trainer.text.batches import batches
from trainer.text.sources import open_inputs
from trainer.text.utf8 import CorpusError

SEPARATOR = "<|endoftext|>"

Clean = Callable[..., CleaningReport]


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    def run(*paths: Path, output: Path | None = None, part_bytes: int = 1 << 26, **settings: Any) -> CleaningReport:
        settings = {"workers": 1, "near_duplicates": 1.0, **settings}
        with progress(shown=False) as new_bar:
            return clean_files(
                paths, output or tmp_path / "out", CleanSettings(**settings), new_bar, part_bytes=part_bytes
            )

    return run


def texts_in(folder: Path) -> list[str]:
    lines = (line for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text("utf-8").splitlines())
    return [json.loads(line)["text"] for line in lines]


def corpus(path: Path, documents: list[str]) -> Path:
    path.write_text(SEPARATOR.join(documents), encoding="utf-8", newline="")
    return path


def edited(text: str, rate: float, source: random.Random) -> str:
    return " ".join(f"w{source.random()}" if source.random() < rate else word for word in text.split(" "))


def words_of(text: str) -> set[tuple[str, ...]]:
    """5-grams of what str.split gives, without punctuation: another way to the same shingles."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text.lower()).split()
    return {tuple(words[n : n + 5]) for n in range(max(1, len(words) - 4))}


def jaccard(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other)


def killed(*args: Any) -> Iterator[tuple[int, Any]]:
    """In the place of `run_in_processes`: a process is lost after the last result."""
    yield from run_in_processes(*args)
    raise LostProcessError("killed")


class TestEqualDocuments:
    def test_the_first_of_each_stays_in_order(self, clean: Clean, tmp_path: Path) -> None:
        report = clean(corpus(tmp_path / "a.txt", ["one", "two", "\none\n", "three", "two"]))
        assert texts_in(tmp_path / "out") == ["one", "two", "three"]
        assert (report.counts.read.documents, report.counts.left["duplicate"].documents) == (5, 2)

    def test_all_alike_leaves_one(self, clean: Clean, tmp_path: Path) -> None:
        clean(corpus(tmp_path / "a.txt", ["the same"] * 1000))
        assert texts_in(tmp_path / "out") == ["the same"]

    def test_formats_and_files_are_one_corpus(self, clean: Clean, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps({"text": text}) + "\n" for text in ["two", "é\n", SEPARATOR]))
        clean(corpus(tmp_path / "a.txt", ["one", "two"]), tmp_path / "b.jsonl.gz")
        assert texts_in(tmp_path / "out") == ["one", "two", "é\n", SEPARATOR]

    @pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
    def test_files_of_records_are_divided(self, clean: Clean, tmp_path: Path, name: str) -> None:
        texts = [f"document {n}" for n in [*range(70), *range(30)]]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=10)
        clean(tmp_path / name, part_bytes=200)
        parts = [path.read_bytes() for path in sorted((tmp_path / "out").glob("*.jsonl"))]
        clean(tmp_path / name, output=tmp_path / "one")
        assert len(parts) > 3
        assert b"".join(parts) == (tmp_path / "one" / "part-00000.jsonl").read_bytes()
        assert texts_in(tmp_path / "one") == texts[:70]

    def test_bytes_that_are_no_utf8(self, clean: Clean, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"good<|endoftext|>b\xffd")
        with pytest.raises(CorpusError, match="offset 18"):
            clean(tmp_path / "a.txt")
        assert not (tmp_path / "out").exists()
        clean(tmp_path / "a.txt", errors="replace")
        assert texts_in(tmp_path / "out") == ["good", "b\ufffdd"]

    @pytest.mark.parametrize("content", ["", " \n", SEPARATOR])
    def test_nothing_to_keep(self, clean: Clean, tmp_path: Path, content: str) -> None:
        (tmp_path / "a.txt").write_text(content)
        with pytest.raises(TrainerError, match="no documents remain"):
            clean(tmp_path / "a.txt")
        assert not (tmp_path / "out").exists()

    def test_standard_input_is_read_once_only(self, clean: Clean) -> None:
        with pytest.raises(UsageError, match="standard input can be read only once"):
            clean(Path("-"))


class TestNearDuplicates:
    @pytest.fixture(autouse=True)
    def rensa(self) -> None:
        pytest.importorskip("rensa", reason="needs ownlm[clean]")

    def test_against_exact_jaccard(self, clean: Clean, data_dir: Path, tmp_path: Path) -> None:
        """Real prose with edited copies: the estimate is off by 0.035 on average."""
        source = random.Random(1)
        text = (data_dir / "owt" / "owt_sample.txt").read_text("utf-8")[:500_000]
        documents = [" ".join(each.split()) for each in text.split(SEPARATOR)[:-1]]
        documents = list(dict.fromkeys(filter(None, documents)))
        documents += [edited(each, source.choice([0.002, 0.01, 0.02, 0.05, 0.1]), source) for each in documents]
        clean(corpus(tmp_path / "a.txt", documents), near_duplicates=0.8)
        stayed = set(texts_in(tmp_path / "out"))
        shingles = [words_of(each) for each in documents]
        half = len(documents) // 2
        certain = found = 0
        for number, each in enumerate(documents[half:], half):
            similarity = jaccard(shingles[number], shingles[number - half])
            if each not in stayed:
                assert max(similarity, *(jaccard(shingles[number], s) for s in shingles[:number])) > 0.7
            if 0.87 < similarity < 1:
                certain += 1
                found += each not in stayed
        assert certain > 30
        assert found / certain > 0.95

    def test_case_blanks_and_punctuation_do_not_count(self, clean: Clean, tmp_path: Path) -> None:
        documents = ["One two, three four five six.", "one  two three\nfour FIVE six!", "one two three four five seven"]
        clean(corpus(tmp_path / "a.txt", documents), near_duplicates=0.8)
        assert texts_in(tmp_path / "out") == [documents[0], documents[2]]

    def test_scripts_without_blanks(self, clean: Clean, data_dir: Path, tmp_path: Path) -> None:
        for name in ("ja", "th", "zh"):
            text = (data_dir / "lang" / f"{name}.txt").read_text("utf-8")
            text = text[1000:3000].replace(SEPARATOR, "")
            documents = [text, text.replace(text[500], "x"), text[::-1]]
            out = tmp_path / name
            clean(corpus(tmp_path / "a.txt", documents), near_duplicates=0.5, output=out)
            assert len(texts_in(out)) == 2

    def test_no_words_are_not_alike(self, clean: Clean, tmp_path: Path) -> None:
        clean(corpus(tmp_path / "a.txt", ["!!!", "???", "..."]), near_duplicates=0.8)
        assert texts_in(tmp_path / "out") == ["!!!", "???", "..."]

    def test_a_huge_document(self, clean: Clean, tmp_path: Path) -> None:
        source = random.Random(2)
        huge = " ".join(str(source.randrange(10**6)) for _ in range(200_000))
        report = clean(corpus(tmp_path / "a.txt", [huge, huge + " end", "small"]), near_duplicates=0.9, part_bytes=1000)
        assert report.counts.kept.documents == 2

    @pytest.mark.extended
    def test_the_result_depends_on_neither_parts_nor_memory(
        self, clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = random.Random(3)
        documents = [" ".join(source.choices("abcdefgh", k=30)) for _ in range(20)]
        documents = [edited(source.choice(documents), 0.03, source) for _ in range(300)]
        path = corpus(tmp_path / "a.txt", documents)
        clean(path, near_duplicates=0.7, output=tmp_path / "one")
        monkeypatch.setattr(duplicates_module, "_BYTES_PER_KEY", 1 << 20)  # several passes
        report = clean(path, near_duplicates=0.7, output=tmp_path / "two", part_bytes=500)
        assert len(list((tmp_path / "two").glob("part-*"))) > 5
        assert texts_in(tmp_path / "one") == texts_in(tmp_path / "two")
        assert 20 <= report.counts.kept.documents < 200


class TestFilters:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("my_cleaning_filters.py").write_text(
            "def short(text): return len(text) < 5\n"
            "def odd(text): return 'three letters' if len(text) == 3 else True\n"
            "def fails(text): return 1 / 0\n"
            "def nothing(text): pass\n"
            "def endless(text): return text\n"
        )

    def test_counts_by_reason(self, clean: Clean, tmp_path: Path) -> None:
        path = corpus(tmp_path / "a.txt", ["one", "four", "seventeen", "two", "four"])
        report = clean(path, filter=("my_cleaning_filters:short", "my_cleaning_filters:odd"))
        assert texts_in(tmp_path / "out") == ["four"]
        found = {name: count.documents for name, count in report.counts.left.items()}
        assert found == {"my_cleaning_filters:short": 1, "my_cleaning_filters:odd: three letters": 2, "duplicate": 1}
        assert report.counts.read.bytes == 3 + 4 + 9 + 3 + 4
        write_report(report, tmp_path / "report.html")
        assert "three letters<td>2<td>40.0%" in (tmp_path / "report.html").read_text()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("fails", "failed on .*a.txt, document 1: ZeroDivisionError"),
            ("nothing", "returned None for .*document 1: True keeps"),
        ],
    )
    def test_a_filter_that_is_wrong(self, clean: Clean, tmp_path: Path, name: str, message: str) -> None:
        with pytest.raises(TrainerError, match=message):
            clean(corpus(tmp_path / "a.txt", ["one"]), filter=(f"my_cleaning_filters:{name}",))
        assert not (tmp_path / "out").exists()

    def test_a_reason_for_each_document(self, clean: Clean, tmp_path: Path) -> None:
        path = corpus(tmp_path / "a.txt", [f"{n:<100}." for n in range(1000)])
        with pytest.raises(TrainerError, match="1,000 different reasons"):
            clean(path, filter=("my_cleaning_filters:endless",))

    @pytest.mark.parametrize("name", ["nothing_there:f", "my_cleaning_filters", "my_cleaning_filters:g", ":", "os:sep"])
    def test_no_such_filter(self, clean: Clean, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=f"--filter {name}"):
            clean(corpus(tmp_path / "a.txt", ["one"]), filter=(name,))


class TestInterruption:
    def test_the_same_command_continues(self, clean: Clean, tmp_path: Path) -> None:
        path = corpus(tmp_path / "a.txt", [f"document {n}" for n in range(50)])

        def stopping_bar(description: str, total: int | None, start: int = 0) -> Callable[..., None]:
            return lambda done, note="": signal.raise_signal(signal.SIGINT) if done > 300 else None

        bar: NewBar = stopping_bar
        settings = CleanSettings(workers=1, near_duplicates=1)
        with pytest.raises(InterruptedRunError, match=r"[1-9] of .* parts .* the same command continues"):
            clean_files([path], tmp_path / "out", settings, bar, part_bytes=100)
        state = tmp_path / "out" / STATE
        finished = {each: each.stat().st_mtime_ns for each in state.glob("*.examined")}
        assert finished
        with pytest.raises(TrainerError, match=r"other inputs or settings left \(shingle\)"):
            clean(path, shingle=3)
        (state / "part-00000.examined").write_bytes(b"damaged")
        clean(path, part_bytes=100)
        assert texts_in(tmp_path / "out") == [f"document {n}" for n in range(50)]
        assert not state.exists()

    def test_a_cluster_that_does_not_answer_costs_nothing(
        self, clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = corpus(tmp_path / "a.txt", ["one", "two"])

        def refuse(*_: object) -> None:
            raise TrainerError("no Ray cluster answers")

        with monkeypatch.context() as patch:
            patch.setattr(clean_module, "run_in_processes", killed)
            patch.setattr(clean_module, "check_ray", lambda: None)
            patch.setattr(clean_module, "ray_cluster", refuse)
            with pytest.raises(LostProcessError):
                clean(path)
            with pytest.raises(TrainerError, match="no Ray cluster answers"):
                clean(path, ray="auto", workers=None)
            assert (tmp_path / "out" / STATE / "part-00000.examined").exists()
            with pytest.raises(TrainerError, match="no Ray cluster answers"):
                clean(path, ray="auto", workers=None, output=tmp_path / "other")
            assert not (tmp_path / "other").exists()

    def test_an_input_in_the_output(self, clean: Clean, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"a.txt is in --output"):
            clean(corpus(tmp_path / "a.txt", ["one"]), output=tmp_path)

    def test_a_finished_output_is_not_replaced_unless_asked(self, clean: Clean, tmp_path: Path) -> None:
        path = corpus(tmp_path / "a.txt", ["one", "two"])
        clean(path)
        with pytest.raises(TrainerError, match="has cleaned text"):
            clean(path)
        clean(corpus(path, ["three"]), overwrite=True)
        assert texts_in(tmp_path / "out") == ["three"]

    def test_a_process_that_is_killed_leaves_what_is_finished(
        self, clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = corpus(tmp_path / "a.txt", ["one", "two"])

        with monkeypatch.context() as patch:
            patch.setattr(clean_module, "run_in_processes", killed)
            with pytest.raises(LostProcessError):
                clean(path)
        assert (tmp_path / "out" / STATE / "part-00000.examined").exists()
        clean(path)
        assert texts_in(tmp_path / "out") == ["one", "two"]

    def test_a_filter_that_was_edited_meanwhile(
        self, clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        module = tmp_path / "edited_cleaning_filter.py"
        module.write_text("def keep(text): return len(text) > 3\n")
        path, filters = corpus(tmp_path / "a.txt", ["one", "two"]), ("edited_cleaning_filter:keep",)

        def full(*args: Any) -> Iterator[Any]:
            yield from run_in_processes(*args)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(clean_module, "run_in_processes", full)
            with pytest.raises(OSError, match="No space"):
                clean(path, filter=filters)
        module.write_text("def keep(text): return True\n")
        with pytest.raises(
            TrainerError, match=r"other inputs or settings left \(--filter edited_cleaning_filter:keep\)"
        ):
            clean(path, filter=filters)

    def test_a_run_without_its_identity_is_not_continued(self, clean: Clean, tmp_path: Path) -> None:
        state = tmp_path / "out" / STATE
        state.mkdir(parents=True)
        (state / "part-00000.examined").write_bytes(b"of something else")
        with pytest.raises(TrainerError, match="other inputs or settings left"):
            clean(corpus(tmp_path / "a.txt", ["one"]))

    def test_the_report_of_a_continued_run_has_the_examples(
        self, clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("rensa")
        story = "once there was a cat who sat on the mat and looked at the dog of the house"
        path = corpus(tmp_path / "a.txt", [f"{n} " + story for n in range(30)] + ["something else", "and another"])
        examples = clean(path, near_duplicates=0.5, part_bytes=300, output=tmp_path / "whole").examples
        assert len(examples) == 20

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(CleanOutput, "publish", full)
            with pytest.raises(OSError, match="No space"):
                clean(path, near_duplicates=0.5, part_bytes=300)
        monkeypatch.setattr(duplicates_module, "_BYTES_PER_KEY", 1 << 26)  # several passes
        assert clean(path, near_duplicates=0.5, part_bytes=300).examples == examples
        assert texts_in(tmp_path / "out") == texts_in(tmp_path / "whole")

    def test_the_command_that_continues_does_not_overwrite(self, clean: Clean, tmp_path: Path) -> None:
        def stopping_bar(description: str, total: int | None, start: int = 0) -> Callable[..., None]:
            return lambda done, note="": signal.raise_signal(signal.SIGINT)

        bar: NewBar = stopping_bar
        settings = CleanSettings(workers=1, near_duplicates=1, overwrite=True)
        path = corpus(tmp_path / "a.txt", [f"document {n}" for n in range(50)])
        with pytest.raises(InterruptedRunError, match="the command without --overwrite continues"):
            clean_files([path], tmp_path / "out", settings, bar, part_bytes=99)


def test_addresses(clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = fsspec.filesystem("memory")
    store.pipe_file("/bucket/clean/a.txt", b"one")
    try:
        report = clean(Path("memory://bucket/clean"), output=Path())
    finally:
        store.rm("/bucket/clean", recursive=True)
    assert report.to_json()["inputs"] == ["memory://bucket/clean"]
    clean(corpus(tmp_path / "a.txt", ["one"]), output=Path(f"file://{tmp_path}/out"))
    assert texts_in(tmp_path / "out") == ["one"]


def test_many_records_are_not_gathered_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file is one part; empty ones count too."""
    pytest.importorskip("rensa")
    path = corpus(tmp_path / "a.txt", [f"document {n}" for n in range(99)])
    cleaned = Corpus(CleanSettings(), {})
    [part] = divide_inputs(open_inputs([path], text_field="text"), cleaned.settings, 1 << 20)
    examine(cleaned, part, tmp_path / "one")
    monkeypatch.setattr(examination_module, "_BATCH_CHARACTERS", 1000)
    assert [len(batch) for batch in batches([("", "place")] * 50, 1000, itemgetter(0))] == [16, 16, 16, 2]
    assert examine(cleaned, part, tmp_path / "two") == 99
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_an_input_that_was_changed_meanwhile_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a.jsonl", ['{"text": "one"}', '{"text": "two"}'])
    cleaned = Corpus(CleanSettings(), {})
    [part] = divide_inputs(open_inputs([path], text_field="text"), cleaned.settings, 1 << 20)
    path.write_text("{}")
    with pytest.raises(CorpusError, match=r"a\.jsonl was changed since the command began: run it again$"):
        [*cleaned.documents(part)]


def test_names_that_are_not_utf8(tmp_path: Path, clean: Clean) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xffd"))
    folder.mkdir()
    report = clean(corpus(folder / "a.jsonl", ['{"text": "one"}']))
    for name in ("r.html", "r.json"):
        write_report(report, tmp_path / name)
    assert "b?d/a.jsonl" in (tmp_path / "r.html").read_text("utf-8")
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["inputs"] == [str(folder / "a.jsonl")]


def test_an_input_that_a_node_lacks_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path / "a.jsonl", ['{"text": "one"}'])
    cleaned = Corpus(CleanSettings(ray="auto"), {})
    [part] = divide_inputs(open_inputs([path], text_field="text"), cleaned.settings, 1 << 20)
    path.unlink()
    with pytest.raises(
        CorpusError, match=r"a\.jsonl was changed .* or is not the same file on the node .* no file there"
    ):
        [*cleaned.documents(part)]


def test_another_version_of_a_filter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("versioned_cleaning_filter.py").write_text("def keep(text): return True\n")
    settings = CleanSettings(filter=("versioned_cleaning_filter:keep",), near_duplicates=1)
    cleaned = Corpus(settings, tools_of(settings))
    cleaned.check_tools()
    Path("versioned_cleaning_filter.py").write_text("def keep(text): return False\n")
    with pytest.raises(TrainerError, match=r"--filter versioned_cleaning_filter:keep: the node .* has another version"):
        cleaned.check_tools()
