"""Where the machine code of kernels is kept, and what happens where it cannot be."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.bpe import kernels
from shared.kernels import object_file as files

object_file = files.of(kernels.__name__)

ROOT = Path(__file__).resolve().parents[3]
# 2 is where the bytes stop to be UTF-8.
PROGRAM = """
from shared.bpe.kernels.utf8 import first_invalid
import numpy as np, sys
print(first_invalid(np.frombuffer(b'ab\\xff', np.uint8), 0, 3), 'numba' in sys.modules)
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def test_machine_code_is_kept_beside_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OWNLM_CACHE_DIR", raising=False)
    assert next(object_file.places()).parent == Path(kernels.__file__).parent / "__pycache__"


def test_a_process_that_finds_it_neither_compiles_nor_imports_the_compiler() -> None:
    process = run(PROGRAM)
    assert process.stdout.split() == ["2", "False"]
    assert process.stderr == ""


def test_the_environment_names_another_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    assert next(object_file.places()).parent == tmp_path


def test_a_damaged_file_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = object_file._find()
    assert whole is not None
    path, next_path = tmp_path / "damaged.o", tmp_path / "whole.o"
    files._write(next_path, hashlib.sha256(whole).digest() + whole)
    monkeypatch.setattr(object_file, "places", lambda: iter([path, next_path]))
    for damaged in (b"", b"no machine code", bytes(files._DIGEST_BYTES) + whole):
        path.write_bytes(damaged)
        assert object_file._find() == whole


def test_another_processor_has_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    ours = object_file._name()
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "another")
    assert object_file._name() != ours


def test_code_in_the_folder_for_temporary_files_counts_only_if_it_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "ownlm"
    folder.mkdir()
    assert files._is_trusted(folder)
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    assert not files._is_trusted(folder)


def test_where_nothing_can_be_written_the_file_is_found_beside_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container that is read-only and has no /tmp."""

    def find_none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    whole = object_file._find()
    assert whole is not None
    monkeypatch.setattr("tempfile.gettempdir", find_none)
    monkeypatch.delenv("OWNLM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_file, "_sources", lambda: tmp_path)
    path, *others = object_file.places()
    assert len(others) == 1, "the user's cache folder"
    assert object_file._find() is None
    path.parent.mkdir()
    files._write(path, hashlib.sha256(whole).digest() + whole)
    assert object_file._find() == whole


def test_without_a_place_for_it_every_process_compiles() -> None:
    """Half a minute of compiling: the file is neither found nor written, and nothing else changes."""
    nowhere = "from shared.kernels.object_file import ObjectFile\nObjectFile.places = lambda self: iter(())\n"
    process = run(nowhere + PROGRAM)
    assert process.stdout.split() == ["2", "True"]
    assert process.stderr == "compiling the tokenizer for this processor, once (about half a minute)\n"


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("shared.kernels.building.build", lambda package: b"machine code")

    def no_room(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write", no_room)
    assert object_file._compile() == b"machine code"


def test_what_was_compiled_is_found_by_the_next_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "made"))
    monkeypatch.setattr("shared.kernels.building.build", lambda package: b"machine code")
    assert object_file._compile() == b"machine code"
    assert object_file._find() == b"machine code"
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".o"]


def test_what_was_compiled_is_named_by_the_sources_that_it_was_compiled_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    before = next(object_file.places())

    def edit_meanwhile(package: str) -> bytes:
        monkeypatch.setattr(object_file, "_name", lambda: "edited.o")
        return b"machine code"

    monkeypatch.setattr("shared.kernels.building.build", edit_meanwhile)
    object_file._compile()
    assert list(tmp_path.iterdir()) == [before]


def test_importing_the_package_loads_nothing() -> None:
    program = "import shared.bpe, sys; print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    assert run(program).stdout.split() == ["False", "False"]
