"""`clean` from and to an object store: see tests/trainer/stores.py."""

import itertools
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.trainer.stores import STORES, bucket_of
from trainer.cleaning.clean import clean_files
from trainer.cleaning.output import REPORT, STATE
from trainer.cleaning.report import CleaningReport
from trainer.errors import InterruptedRunError, TrainerError, UsageError
from trainer.settings.clean import CleanSettings
from trainer.storage.folder import StorageError
from trainer.storage.remote import url_of
from trainer.storage.remote_folder import RemoteFolder

SEPARATOR = "<|endoftext|>"
PART_BYTES = 1500


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.ray)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Names below an empty folder of an object store."""
    base = bucket_of(request, monkeypatch)
    return lambda name: Path(f"{base}/{tmp_path.name}/{name}")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Documents, of which some are alike, some are equal, and the last part has none that stays."""
    draw = random.Random(5)
    documents = [" ".join(draw.choices("abcdefghij", k=40)) for _ in range(60)]
    copies = [each.replace("a b", "b a", 1) for each in documents[:20]]
    path = tmp_path / "in" / "a.txt"
    path.parent.mkdir()
    path.write_text(SEPARATOR.join([*documents, *copies, *documents]))
    return path


def clean(paths: list[Path], output: Path, after: Callable[[str], object] = id, **settings: Any) -> CleaningReport:
    """Clean in this process; `after` is called with the name of a pass whenever it has come further."""

    def new_bar(description: str, total: int | None, start: int = 0) -> Callable[..., None]:
        return lambda done, note="": after(description) and None

    options = CleanSettings(**{"near_duplicates": 1.0, "workers": 1, **settings})
    return clean_files(paths, output, options, new_bar, part_bytes=PART_BYTES)


def upload(path: Path, to: Path) -> Path:
    store, name = fsspec.core.url_to_fs(url_of(to))
    store.pipe_file(name, path.read_bytes())
    return to


def contents(folder: Path) -> dict[str, bytes]:
    store, name = fsspec.core.url_to_fs(url_of(folder) or str(folder))
    store.invalidate_cache()
    return {key.removeprefix(f"{name}/"): store.cat_file(key) for key in store.find(name)}


def stop_in(name: str, calls: int) -> Callable[[str], None]:
    """Sends SIGINT when a pass has come further for so many times."""
    left = [calls]

    def after(description: str) -> None:
        if description == name:
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(signal.SIGINT)

    return after


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("threshold", [1.0, 0.5])
def test_the_files_are_those_of_a_folder(
    store: Callable[[str], Path], text: Path, tmp_path: Path, threshold: float
) -> None:
    if threshold < 1:
        pytest.importorskip("rensa", reason="needs ownlm[clean]")
    given = upload(text, store("in/a.txt"))
    clean([given], tmp_path / "out", near_duplicates=threshold)
    report = clean([given], store("out"), near_duplicates=threshold)
    found = contents(store("out"))
    assert found == contents(tmp_path / "out")
    assert len(found) > 3
    assert report.counts.left["duplicate"].documents >= 60
    assert ("near-duplicate" in report.counts.left) == (threshold < 1)


@pytest.mark.parametrize("name", ["examining", "comparing", "writing"])
def test_an_interrupted_run_continues_in_the_store(store: Callable[[str], Path], text: Path, name: str) -> None:
    whole: list[str] = []
    clean([text], store("whole"), whole.append)
    with pytest.raises(
        InterruptedRunError, match=rf"[1-9]\d* of \d+ parts .* kept in .*/out/{STATE}: the same command"
    ):
        clean([text], store("out"), stop_in(name, 1 if name == "comparing" else 2))
    assert not [file for file in contents(store("out")) if not file.startswith(STATE)]
    with pytest.raises(TrainerError, match=r"other inputs or settings left \(shingle\)"):
        clean([text], store("out"), shingle=3)
    passes: list[str] = []
    clean([text], store("out"), passes.append)
    assert passes.count("examining") == (whole.count("examining") - 2 if name == "examining" else 0)
    assert passes.count("writing") == whole.count("writing") - (2 if name == "writing" else 0)
    assert contents(store("out")) == contents(store("whole"))


def failing_after(count: int, method: Callable[..., None]) -> Callable[..., None]:
    """A method that works so many times only."""
    calls = itertools.count()

    def call(*args: Any) -> None:
        if next(calls) >= count:
            raise StorageError("the store does not answer")
        method(*args)

    return call


def test_a_run_that_is_stopped_while_it_names_the_parts(
    store: Callable[[str], Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean([text], store("whole"))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "rename", failing_after(1, RemoteFolder.rename))
        with pytest.raises(StorageError, match=r"does not answer; \d+ of \d+ parts .* the same command continues"):
            clean([text], store("out"))
    assert REPORT not in contents(store("out"))
    passes: list[str] = []
    clean([text], store("out"), passes.append)
    assert set(passes) == {"comparing"}
    assert contents(store("out")) == contents(store("whole"))


def test_a_store_that_fails_keeps_what_is_finished(
    store: Callable[[str], Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = RemoteFolder.put
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "put", failing_after(2, put))
        with pytest.raises(StorageError, match=r"does not answer; 2 of \d+ parts of the text are examined and kept"):
            clean([text], store("out"))
        patch.setattr(RemoteFolder, "put", failing_after(0, put))
        with pytest.raises(StorageError, match="does not answer; no part of the text was finished"):
            clean([text], store("other"))
    assert not contents(store("other"))
    clean([text], store("out"))
    assert contents(store("out"))[REPORT]


@pytest.mark.parametrize("name", ["fetch", "write"])
def test_a_failure_before_the_first_part_keeps_what_was_there(
    store: Callable[[str], Path], text: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(InterruptedRunError):
        clean([text], store("out"), stop_in("examining", 3))
    before = contents(store("out"))

    def fail(*_: object) -> None:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, name, fail)
        with pytest.raises(StorageError, match="does not answer"):
            clean([text], store("out"))
    assert contents(store("out")) == before


def test_what_is_there_is_replaced_only_if_that_is_asked_for(store: Callable[[str], Path], text: Path) -> None:
    clean([text], store("out"))
    before = contents(store("out"))
    with pytest.raises(TrainerError, match=r"out has cleaned text; choose another --output"):
        clean([text], store("out"))
    assert contents(store("out")) == before
    text.write_text("one")
    clean([text], store("out"), overwrite=True)
    assert contents(store("out"))["part-00000.jsonl"] == b'{"text":"one"}\n'
    assert len(contents(store("out"))) == 2


def test_an_input_in_the_output(store: Callable[[str], Path], text: Path) -> None:
    given = upload(text, store("out/a.txt"))
    with pytest.raises(UsageError, match=r"out/a\.txt is in --output .*/out, which is written"):
        clean([given], store("out"))
    clean([given], store("out2"))


def test_an_input_that_changes_between_the_passes(store: Callable[[str], Path], text: Path) -> None:
    given = upload(text, store("a.txt"))

    def change(name: str) -> None:
        if name == "comparing":
            text.write_text("something else")
            upload(text, given)

    with pytest.raises(TrainerError, match=r"a\.txt was changed since the command began"):
        clean([given], store("out"), change)


def test_nothing_stays(store: Callable[[str], Path], text: Path) -> None:
    text.write_text(" ")
    with pytest.raises(TrainerError, match="no documents remain"):
        clean([text], store("out"))
    assert not contents(store("out"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_runs_the_later_one_continues(store: Callable[[str], Path], text: Path, overwrite: bool) -> None:
    clean([text], store("whole"))

    def begin_another(name: str) -> None:
        if name == "examining" and REPORT not in contents(store("out")):
            clean([text], store("out"), overwrite=overwrite)

    with pytest.raises(StorageError, match=r"another run has begun .*/out: this one stops, and that one continues"):
        clean([text], store("out"), begin_another)
    assert contents(store("out")) == contents(store("whole"))
