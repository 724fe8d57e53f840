"""Where tasks write."""

import shutil
from pathlib import Path

import pytest

from trainer.cluster.task_output import TaskOutput
from trainer.storage.folder import LocalFolder, StorageError
from trainer.storage.remote_folder import open_folder


def test_attempts_do_not_share_a_folder(tmp_path: Path) -> None:
    output = TaskOutput.of(LocalFolder(tmp_path), tmp_path / "scratch")
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


def test_what_another_node_has_written_elsewhere_is_missed(tmp_path: Path) -> None:
    output = TaskOutput.of(LocalFolder(tmp_path / "out"), tmp_path / "scratch")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    output.check_visible("a")
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(StorageError, match="name an --output that all nodes share, or one in an object store"):
        output.check_visible("a")
