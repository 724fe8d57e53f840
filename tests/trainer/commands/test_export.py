"""`export`: what it prints, writes and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.bpe import train_bpe
from tests.trainer.export.test_gguf_file import LLAMA, TEXT, save

pytestmark = pytest.mark.extended


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", "export", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_bpe([TEXT], 330, special_tokens=["<|endoftext|>", "<|im_end|>"]).tokenizer
    return save(tmp_path_factory.mktemp("runs") / "first" / "model", LLAMA, tokenizer)


def test_a_file_and_a_modelfile(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "first.gguf"
    done = run(model, "--gguf", file)
    assert (done.returncode, "wrote" in done.stderr) == (0, True), done.stderr
    assert file.read_bytes().startswith(b"GGUF")
    lines = (tmp_path / "new" / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./first.gguf"
    assert "PARAMETER temperature 0.7" in lines
    assert "PARAMETER num_ctx 64" in lines
    before = file.read_bytes()
    again = run(model, "--gguf", file)
    assert (again.returncode, "--overwrite" in again.stderr) == (2, True)
    assert run(model, "--gguf", file, "--overwrite").returncode == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("--gguf", "model.bin"), 2, "must end in .gguf"),
        (("--gguf", "x.gguf", "--dtype", "q4"), 2, "dtype"),
        ((), 2, "gguf"),
        (("--gguf", "/proc/x.gguf"), 1, "/proc"),
    ],
)
def test_what_is_wrong_is_named(model: Path, arguments: tuple[str, ...], status: int, reason: str) -> None:
    done = run(model, *arguments)
    assert (done.returncode, reason in done.stderr + done.stdout) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


def test_no_model_there(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing", "--gguf", tmp_path / "x.gguf")
    assert (done.returncode, "no such folder" in done.stderr) == (1, True)
    assert not (tmp_path / "x.gguf").exists()
