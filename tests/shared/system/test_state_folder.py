"""What an interrupted job leaves: there whole or not at all, for the same job only, and for one process at a time."""

from pathlib import Path

import pytest

from shared.system.state_folder import StateError, StateFolder


def test_what_was_saved_is_loaded_and_removed(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "deep/state", {"pattern": "gpt2", "sources": [["a", "1"], ["b", "2"]]})
    folder.save({"position": 7})
    folder.save({"position": 8})
    assert folder.load()["position"] == 8
    assert [path.name for path in folder.path.iterdir()] == ["state.json"]
    folder.remove()
    assert not folder.path.exists()
    folder.remove()
    with pytest.raises(StateError, match="nothing to resume"):
        folder.load()


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"pattern": "qwen", "sources": [["a", "1"], ["b", "2"]]}, "pattern: gpt2 then, qwen now"),
        ({"pattern": "gpt2", "sources": [["a", "1"], ["b", "3"]]}, r"sources: \['b', '2'\] then, \['b', '3'\] now"),
        ({"pattern": "gpt2", "sources": [["a", "1"]]}, "sources: 2 then, 1 now"),
        ({"min count": 2}, "min count: None then, 2 now"),
    ],
)
def test_another_job_is_refused_with_what_differs(tmp_path: Path, identity: dict[str, object], message: str) -> None:
    StateFolder(tmp_path, {"pattern": "gpt2", "sources": [["a", "1"], ["b", "2"]]}).save({})
    with pytest.raises(StateError, match=f"another job: {message}"):
        StateFolder(tmp_path, identity).load()


def test_another_version_is_refused(tmp_path: Path) -> None:
    StateFolder(tmp_path, {}).save({})
    with pytest.raises(StateError, match="has version 1, this program reads 2; start again without --resume"):
        StateFolder(tmp_path, {}, version=2).load()


def test_a_lock_keeps_others_out_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "out/state", {})
    with folder.locked():
        with pytest.raises(StateError, match="another process is using"), folder.locked():
            pass
        assert folder.path.exists()
    assert not (tmp_path / "out").exists()
    with folder.locked():
        folder.save({})
    assert folder.manifest.exists()
