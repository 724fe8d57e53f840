"""The child that compiles: what ends it, and what its parent says then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.bpe import kernels
from shared.bpe.kernels.pretoken_cache import keep
from shared.kernels.compiler_process import compiled_in_child

ROOT = Path(__file__).resolve().parents[3]


def behave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Let a shell script be what runs instead of Python."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("kill -9 $$", MemoryError, r"not enough memory to compile the kernels, .* \(Killed\)"),
        ("echo 'LLVM ERROR: out of memory' >&2; exit 134", MemoryError, "LLVM ERROR: out of memory"),
        ("echo MemoryError >&2; exit 1", MemoryError, "not enough memory to compile the kernels"),
        ("kill -11 $$", RuntimeError, "compiling the kernels failed: Segmentation fault"),
        ("echo Traceback >&2; echo 'SyntaxError: here' >&2; exit 1", RuntimeError, "failed: SyntaxError: here\nTrace"),
        ("exit 3", RuntimeError, "failed: exit code 3"),
        ("echo something else", RuntimeError, "failed: exit code 0"),
        ("printf ''", RuntimeError, "failed: exit code 0"),
    ],
)
def test_a_child_that_fails_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, error: type[Exception], message: str
) -> None:
    behave(monkeypatch, tmp_path, script)
    with pytest.raises(error, match=message):
        compiled_in_child("some.kernels", "the kernels")


@pytest.mark.parametrize("interpreter", ["", "/nowhere/python"])
def test_without_an_interpreter_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, interpreter: str) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(RuntimeError, match="the compiler of the kernels cannot be started"):
        compiled_in_child("some.kernels", "the kernels")


def test_an_error_in_a_kernel_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "broken_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "adding.py").write_text(
        "from shared.kernels.compiling import compiled\nfrom shared.kernels.types import int64\n\n\n"
        "@compiled\ndef add(a: int64) -> int64:\n    return a + missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"compiling the kernels failed: (.|\n)*'missing' is not defined"):
        compiled_in_child("broken_kernels", "the kernels")


def test_the_child_ends_with_its_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "shared.kernels.building", kernels.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    output, _ = child.communicate()  # closes its input
    assert (child.returncode, output) == (1, b"")


def test_a_kernel_without_an_entry_says_so() -> None:
    with pytest.raises(TypeError, match="keep is inlined into other kernels"):
        keep.machine_code  # noqa: B018
