"""Checkpoints in an object store; fsspec's memory:// stands for one."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from shared.system.checksums import write_checksums
from tests.trainer.machines import on_two_machines
from trainer.checkpoints.folders import checkpoints_by_step, is_intact
from trainer.checkpoints.store import CheckpointStore, mirror, prepare_store, resolve_resume
from trainer.compute.processes import ONE_PROCESS
from trainer.errors import TrainerError, UsageError
from trainer.settings.train import CheckpointSettings, TrainSettings

URL = "memory://bucket/run"


@pytest.fixture(autouse=True)
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:08d}"
    (path / "templates").mkdir(parents=True)
    (path / "weights.bin").write_bytes(bytes([step]))
    (path / "templates" / "chat.jinja").write_text("{{ messages }}")
    write_checksums(path)
    return path


def settings(folder: Path, **checkpoints: object) -> TrainSettings:
    own = CheckpointSettings(checkpoint_store=URL, **checkpoints)  # type: ignore[arg-type]
    return TrainSettings(data=folder / "data", output=folder / "run", checkpoints=own)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    store = CheckpointStore(URL)
    assert store.steps() == []
    path = checkpoint(tmp_path / "one", 7)
    store.upload(path)
    copy = store.download(7, tmp_path / "two")
    assert store.steps() == [7]
    assert {f.relative_to(path): f.read_bytes() for f in path.rglob("*") if f.is_file()} == {
        f.relative_to(copy): f.read_bytes() for f in copy.rglob("*") if f.is_file()
    }


def test_what_was_not_written_to_the_end_is_no_checkpoint(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(URL)
    put: Callable[..., None] = memory.put_file
    path = checkpoint(tmp_path, 7)
    files = 3
    for limit in range(files):
        written = []

        def failing(source: str, target: str, limit: int = limit, written: list[str] = written) -> None:
            if len(written) == limit:
                raise OSError("connection reset")
            written.append(target)
            put(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(store._system, "put_file", failing)
            with pytest.raises(TrainerError, match="memory://bucket/run cannot be written: connection reset"):
                store.upload(path)
        assert store.steps() == []
    store.upload(path)
    assert store.steps() == [7]


def test_a_damaged_one_is_not_taken(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    store = CheckpointStore(URL)
    for step in (1, 2):
        store.upload(checkpoint(tmp_path / "one", step))
    memory.pipe_file("/bucket/run/step-00000002/weights.bin", b"other")
    with pytest.raises(TrainerError, match="step-00000002 is damaged"):
        store.download(2, tmp_path / "two")
    assert not list((tmp_path / "two").iterdir())
    resolved = resolve_resume(settings(tmp_path, auto_resume=True), ONE_PROCESS)
    assert resolved.checkpoints.resume
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


def test_auto_resume_starts_where_there_is_nothing(tmp_path: Path) -> None:
    assert not resolve_resume(settings(tmp_path, auto_resume=True), ONE_PROCESS).checkpoints.resume
    assert resolve_resume(settings(tmp_path, resume=True), ONE_PROCESS).checkpoints.resume


@pytest.mark.parametrize("owner", [0, 1])
def test_a_checkpoint_that_only_one_machine_has_is_copied_to_the_others(tmp_path: Path, owner: int) -> None:
    """It was not copied when it was new: the store failed, or the machine was killed. Rank 0 may be on any machine."""
    runs = [settings(tmp_path / str(rank), auto_resume=True) for rank in range(2)]
    CheckpointStore(URL).upload(checkpoint(runs[owner].output / "checkpoints", 40))
    checkpoint(runs[owner].output / "checkpoints", 60)
    resolved = on_two_machines(lambda processes: resolve_resume(runs[processes.rank], processes))
    assert all(each.checkpoints.resume for each in resolved)
    assert CheckpointStore(URL).steps() == [60, 40]
    for run in runs:
        assert is_intact(run.output / "checkpoints" / "step-00000060")


def test_a_checkpoint_that_cannot_be_copied_is_a_warning(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [settings(tmp_path / str(rank), auto_resume=True) for rank in range(2)]
    CheckpointStore(URL).upload(checkpoint(runs[0].output / "checkpoints", 40))
    checkpoint(runs[0].output / "checkpoints", 60)
    monkeypatch.setattr(type(memory), "put_file", lambda *_: 1 / 0)
    with caplog.at_level(logging.INFO):
        on_two_machines(lambda processes: resolve_resume(runs[processes.rank], processes))
    assert "cannot be written: division by zero" in caplog.text
    assert caplog.text.count("downloaded") == 1, "the other machine has it"
    assert list(checkpoints_by_step(runs[1].output / "checkpoints")) == [40]


def test_old_ones_are_deleted_but_the_best(tmp_path: Path) -> None:
    for step in range(1, 6):
        mirror(settings(tmp_path, keep=2), checkpoint(tmp_path / "one", step), best_step=1)
    assert CheckpointStore(URL).steps() == [5, 4, 1]


def test_a_store_that_fails_is_a_warning(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(memory), "put_file", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING):
        mirror(settings(tmp_path), checkpoint(tmp_path, 1), None)
    assert "cannot be written: division by zero" in caplog.text
    assert "on this machine alone" in caplog.text


def test_no_such_storage() -> None:
    with pytest.raises(UsageError, match="--checkpoint-store nowhere://x: nowhere:// is not known"):
        CheckpointStore("nowhere://x")


def test_a_folder_of_another_run_is_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    url = "memory://bucket/[1] of 2?*"
    store = CheckpointStore(url)
    store.upload(checkpoint(tmp_path, 200))
    assert store.steps() == [200]
    with pytest.raises(UsageError, match=r"already holds a run, up to step 200: resume it .*--overwrite"):
        prepare_store(CheckpointSettings(checkpoint_store=url))
    prepare_store(CheckpointSettings(checkpoint_store=url, resume=True))
    prepare_store(CheckpointSettings())
    assert store.steps() == [200]
    prepare_store(CheckpointSettings(checkpoint_store=url, overwrite=True))
    assert store.steps() == []
    prepare_store(CheckpointSettings(checkpoint_store=url))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_disk_that_machines_share(tmp_path: Path, scheme: str) -> None:
    store = CheckpointStore(f"{scheme}{tmp_path}/store")
    store.upload(checkpoint(tmp_path, 7))
    assert (store.download(7, tmp_path / "copy") / "templates" / "chat.jinja").exists()
    store.delete(store.steps())
    assert not [*(tmp_path / "store").iterdir()]


def test_passwords_of_stores_are_not_shown() -> None:
    with pytest.raises(UsageError, match=r"--checkpoint-store ftp://me:\*\*\*@host/x: the address has a password"):
        CheckpointStore("ftp://me:secret@host/x")
