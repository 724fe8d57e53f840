"""Building a report where it cannot be written."""

import errno
from pathlib import Path

import pytest

from trainer.report import build
from trainer.report.figures import FigureFiles


def test_a_full_disk_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib's error does not."""

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "run").mkdir()
    (tmp_path / "run/train.toml").touch()
    monkeypatch.setattr(build, "draw_all", full)
    with pytest.raises(OSError, match="No space left") as raised:
        build.build_report(
            [tmp_path / "run"],
            tmp_path / "page.html",
            files=FigureFiles(tmp_path / "page"),
            prompt=None,
            models=False,
            device="cpu",
        )
    assert raised.value.filename == str(tmp_path / "page")
