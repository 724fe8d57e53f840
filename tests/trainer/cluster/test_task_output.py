"""Where tasks write."""

import itertools
import shutil
import time
from pathlib import Path

import pytest

from trainer.cluster.task_output import TaskOutput
from trainer.storage.folder import LocalFolder, StorageError
from trainer.storage.remote_folder import open_folder


def test_attempts_do_not_share_a_folder(tmp_path: Path) -> None:
    output = TaskOutput.of(LocalFolder(tmp_path), tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()
    with output.attempt() as one, output.attempt() as two:
        assert one != two
        assert one.parent == two.parent == tmp_path / "scratch"
    assert not list((tmp_path / "scratch").iterdir())


def test_nothing_of_an_object_store_is_on_a_shared_disk(tmp_path: Path) -> None:
    output = TaskOutput.of(open_folder(Path("memory://bucket/out")), tmp_path)
    with output.attempt() as folder:
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
    assert not folder.exists()


def test_what_another_node_has_written_elsewhere_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = TaskOutput.of(LocalFolder(tmp_path / "out"), tmp_path / "scratch")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    output.check_visible("a")
    shutil.rmtree(tmp_path / "out")
    slept: list[float] = []
    clock = itertools.count()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(StorageError, match="is not here: name an --output on a disk that all nodes share"):
        output.check_visible("a")
    assert len(slept) == 59  # for which NFS may not show it


def test_a_file_that_nfs_shows_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = TaskOutput.of(LocalFolder(tmp_path), tmp_path / "scratch")
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "a").touch())
    output.check_visible("a")


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_a_full_disk_is_named(tmp_path: Path, scratch: str | None) -> None:
    (tmp_path / "scratch").mkdir()
    output = TaskOutput(LocalFolder(tmp_path), None if scratch is None else tmp_path / scratch)
    with pytest.raises(StorageError, match=r"the disk of .*/\S+ is full: free some space"), output.attempt() as folder:
        raise OSError(28, "No space left on device")
    assert not folder.exists()


def test_a_disk_that_a_node_does_not_share(tmp_path: Path) -> None:
    output = TaskOutput(LocalFolder(tmp_path / "out"), tmp_path / "out" / "state")
    with pytest.raises(StorageError, match=r"out/state is not on the node .*: name an --output on a disk that all"):
        output.attempt().__enter__()
    assert not (tmp_path / "out").exists()
