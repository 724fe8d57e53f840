"""A folder is replaced whole or not at all, whatever happens in between."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.system import folder_swap
from shared.system.folder_swap import replace_folder

# Replaces a folder of three files for ever, each time with another number in all of them. It imports the file alone,
# since the package around it would import torch.
WRITER = """
import itertools, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from folder_swap import replace_folder
for number in itertools.count(1):
    with replace_folder(Path(sys.argv[2])) as folder:
        for name in "abc":
            (folder / name).write_text(str(number) * 1000)
    print(number, flush=True)
"""


def fill(path: Path, text: str) -> None:
    with replace_folder(path) as folder:
        (folder / "file").write_text(text)


def test_a_folder_is_created_and_replaced(tmp_path):
    path = tmp_path / "not" / "there" / "yet"
    for text in ("first", "second"):
        fill(path, text)
        assert (path / "file").read_text() == text
        assert [entry.name for entry in path.parent.iterdir()] == ["yet"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    fill(tmp_path / "real", "first")
    (tmp_path / "link").symlink_to("real")
    fill(tmp_path / "link", "second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "second"
    assert {entry.name for entry in tmp_path.iterdir()} == {"link", "real"}


def test_without_an_atomic_exchange_two_renames_do(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_swap.sys, "platform", "elsewhere")
    fill(tmp_path / "folder", "first")
    fill(tmp_path / "folder", "second")
    assert (tmp_path / "folder" / "file").read_text() == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_folder_and_no_litter(tmp_path, error):
    fill(tmp_path / "folder", "old")
    with pytest.raises(type(error)), replace_folder(tmp_path / "folder") as folder:  # noqa: PT012
        (folder / "file").write_text("new")
        raise error
    assert (tmp_path / "folder" / "file").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_everything_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(folder_swap, "_sync", lambda path: synced.append(path.name))
    with replace_folder(tmp_path / "folder") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("text")
        assert synced == []
    assert sorted(synced[:-1]) == [".folder.partial", "file", "sub"]
    assert synced[-1] == tmp_path.name  # the parent, which holds the new name


def test_a_killed_process_leaves_the_old_folder_or_the_new_one(tmp_path):
    path = tmp_path / "folder"
    for attempt in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(Path(folder_swap.__file__).parent), str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.003 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        texts = {(path / name).read_text() for name in "abc"}
        assert len(texts) == 1
        assert len(texts.pop()) % 1000 == 0
        assert {entry.name for entry in tmp_path.iterdir()} <= {"folder", ".folder.partial"}
    fill(path, "afterwards")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
