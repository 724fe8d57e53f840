"""Where the machine code of kernels is kept, and what happens where it cannot be."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared.bpe import kernels
from shared.kernels import object_file as files
from shared.kernels import processor

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
    ours = object_file._name()
    monkeypatch.setattr(processor, "description", lambda: "another")
    assert object_file._name() != ours


def test_without_compiler_an_unknown_processor_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on an ARM Mac that emulates x86-64: /proc/cpuinfo has no flags, and images have no LLVM to ask."""
    for function in ("_version_of_llvm", "_llvm"):
        monkeypatch.setattr(files, function, lambda: None)
    for function, unknown in (("description", None), ("flags", frozenset())):
        monkeypatch.setattr(processor, function, lambda unknown=unknown: unknown)
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(files.ObjectFile, "_sources", lambda _: tmp_path)
    with pytest.raises(RuntimeError, match="no compiled code that runs on this processor, and no compiler"):
        files.ObjectFile(kernels.__name__).load()


def give_to_another_user(path: Path) -> None:
    """Make a file or folder another user's; where the tests run as a plain user, make this process another's."""
    if os.getuid() == 0:
        os.lchown(path, 12345, 12345)
    else:
        os.getuid = lambda: path.lstat().st_uid + 1  # undone by `own_places`


def replace_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere")).chmod(0o755)
    path.symlink_to("elsewhere")


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILED = {
    "a folder that others may write": (lambda folder, _: folder.chmod(0o777), r"cache can be .* others \(mode 0777\)"),
    "a sticky one, like /tmp": (lambda folder, _: folder.chmod(0o1777), r"cache can be .* others \(mode 1777\)"),
    "a folder that a group may write": (lambda folder, _: folder.chmod(0o775), r"cache can be .* others \(mode 0775\)"),
    "another user's folder": (lambda folder, _: give_to_another_user(folder), "belongs to user"),
    "a link to a folder": (lambda folder, _: replace_by_a_link(folder), "cache is a symbolic link"),
    "a file that others may write": (lambda _, file: file.chmod(0o666), r"\.o can be .* others \(mode 0666\)"),
    "another user's file": (lambda _, file: give_to_another_user(file), r"belongs to user"),
    "a pipe": (lambda _, file: replace_by_a_pipe(file), r"\.o is not a file"),
}


@pytest.fixture
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The files that a user may have, none of them beside the sources: that named first, at home, and in /tmp."""
    (tmp_path / "tmp").mkdir(mode=0o1777)
    (tmp_path / "read-only").write_bytes(b"")  # a file, where no folder can be made
    monkeypatch.setattr(os, "getuid", os.getuid)
    monkeypatch.setattr(object_file, "_sources", lambda: tmp_path / "read-only")
    monkeypatch.setattr(files, "compiled_in_child", lambda package, title: b"our code")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    named, _, home, temporary = object_file.places()
    return [named, home, temporary]


@pytest.mark.case("D20")
@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_another_user_may_have_put_there_is_refused_and_compiled_elsewhere(
    spoiled: str, own_places: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    named, home, _ = own_places
    object_file._compile()
    assert object_file._find() == b"our code"
    assert capfd.readouterr().err.count("\n") == 1, "that it is compiled"
    spoil, fault = SPOILED[spoiled]
    spoil(named.parent, named)
    assert object_file._find() is None
    warning = capfd.readouterr().err
    assert re.fullmatch(rf"warning: .*{fault}.*OWNLM_CACHE_DIR.*\n", warning), warning
    object_file._compile()
    # A file in a folder of ours alone is replaced.
    assert (home if "folder" in spoiled else named).read_bytes().endswith(b"our code")
    assert object_file._find() == b"our code"


@pytest.mark.case("D20")
def test_a_link_in_the_folder_for_temporary_files_is_not_followed(
    own_places: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named, home, temporary = own_places
    for path in (named, home):  # nothing can be made there
        path.parent.parent.mkdir(exist_ok=True)
        path.parent.write_bytes(b"")
    target = tmp_path / "target"
    target.mkdir()
    temporary.parent.symlink_to(target)
    assert object_file._find() is None
    assert f"{temporary.parent} is a symbolic link" in capfd.readouterr().err
    assert object_file._compile() == b"our code"
    assert not [*target.iterdir()]


@pytest.mark.case("D20")
def test_a_process_warns_and_goes_on_with_code_that_can_be_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    poison = b"no machine code"
    (tmp_path / object_file._name()).write_bytes(hashlib.sha256(poison).digest() + poison)
    process = run(PROGRAM, OWNLM_CACHE_DIR=str(tmp_path))
    assert process.stdout.split() == ["2", "False"]
    assert process.stderr.startswith(f"warning: {tmp_path} can be written by others (mode 0777)")


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


@pytest.mark.slow
def test_without_a_place_for_it_every_process_compiles() -> None:
    """The file is neither found nor written; the compiler is loaded in a child alone, and nothing else changes."""
    nowhere = "from shared.kernels.object_file import ObjectFile\nObjectFile.places = lambda self: iter(())\n"
    process = run(nowhere + PROGRAM)
    assert process.stdout.split() == ["2", "False"]
    assert process.stderr == "compiling the tokenizer for this processor, once (up to a minute)\n"


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(files, "compiled_in_child", lambda package, title: b"machine code")

    def no_room(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write", no_room)
    assert object_file._compile() == b"machine code"


def test_what_was_compiled_is_found_by_the_next_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path / "made"))
    monkeypatch.setattr(files, "compiled_in_child", lambda package, title: b"machine code")
    assert object_file._compile() == b"machine code"
    assert object_file._find() == b"machine code"
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".o"]


def test_what_was_compiled_is_named_by_the_sources_that_it_was_compiled_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OWNLM_CACHE_DIR", str(tmp_path))
    before = next(object_file.places())

    def edit_meanwhile(package: str, title: str) -> bytes:
        monkeypatch.setattr(object_file, "_name", lambda: "edited.o")
        return b"machine code"

    monkeypatch.setattr(files, "compiled_in_child", edit_meanwhile)
    object_file._compile()
    assert list(tmp_path.iterdir()) == [before]


def test_importing_the_package_loads_nothing() -> None:
    program = "import shared.bpe, sys; print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    assert run(program).stdout.split() == ["False", "False"]
