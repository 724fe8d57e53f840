"""Where compiled kernels are kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.bpe.kernels import compiling

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def forgotten():
    compiling.cache_folder.cache_clear()
    yield
    compiling.cache_folder.cache_clear()


def test_kernels_are_kept_beside_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    folder = compiling.cache_folder()
    assert folder is not None
    assert folder.parent == Path(compiling.__file__).parent / "__pycache__"


def test_the_environment_names_another_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = compiling.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path


def test_what_came_with_read_only_sources_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    shipped = compiling.cache_folder()
    assert shipped is not None
    marker = shipped / f"marker-{tmp_path.name}" / "kernel"
    marker.parent.mkdir(parents=True)
    marker.touch()
    marker.parent.chmod(0o555)
    compiling.cache_folder.cache_clear()
    monkeypatch.setattr(compiling, "_is_writable", lambda folder: tmp_path in folder.parents and not folder.mkdir())
    folder = compiling.cache_folder()
    marker.parent.chmod(0o755)
    shutil.rmtree(marker.parent)
    assert folder == tmp_path / "ownlm" / shipped.name
    # The copy can be added to, for another processor, though the original cannot.
    (folder / marker.parent.name / "kernel").write_text("changed")
    (folder / marker.parent.name / "another").touch()
    assert not list(folder.parent.glob("tmp*"))


def test_nowhere_to_write_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_is_writable", lambda folder: False)
    assert compiling.cache_folder() is None


def test_a_process_without_a_place_for_kernels_still_computes(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "import shared.bpe.kernels.compiling as c\n"
        "c._is_writable = lambda folder: False\n"
        "from shared.bpe.kernels.utf8 import first_invalid\n"
        "import numpy as np\n"
        "print(c.cache_folder(), first_invalid(np.frombuffer(b'ab\\xff', np.uint8), 0, 3))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.split() == ["None", "2"]
    assert "compiling the tokenizer" in process.stderr


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from shared.bpe.kernels.utf8 import first_invalid\n"
        "import numpy as np\n"
        "print(first_invalid(np.frombuffer(b'ab\\xff', np.uint8), 0, 3))\n"
    )
    process = subprocess.run(
        [sys.executable, "-B", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert process.stdout.split() == ["2"]


def test_importing_the_package_loads_no_compiler(tmp_path: Path) -> None:
    program = "import shared.bpe, sys; print('numba' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.strip() == "False"
