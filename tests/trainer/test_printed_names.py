"""No name of a file, and nothing in one, moves the cursor of a terminal, begins a line, or ends a command."""

import ast
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from trainer.cli import app
from trainer.console import progress

ROOT = Path(__file__).resolve().parents[2]
# Clears the screen, as text and in one byte; begins a line; is markup and an emoji of rich's; is not UTF-8.
ODD = "a\x1b[2J\x9b2J\r\nerror: [b] :smile: \udcff.txt"
SHOWN = "a\\x1b[2J\\x9b2J\\r\n  error: [b] :smile: \\udcff.txt"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.case("D54")
def test_names_in_error_messages_are_escaped(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / ODD).write_bytes(b"\xff")
    done = run("encode", tmp_path / ODD, "--tokenizer", tokenizer_folder, "--output", tmp_path / "out")
    assert done.returncode == 1
    assert f"{tmp_path}/{SHOWN} is not UTF-8: byte 0xff at offset 0" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


@pytest.mark.extended
@pytest.mark.case("D54")
def test_every_command_takes_a_file_of_any_name(tmp_path: Path, tokenizer_folder: Path, text_file: Path) -> None:
    (tmp_path / ODD).write_bytes(text_file.read_bytes())
    folders = ("--output", tmp_path / f"out{ODD}", "--overwrite")
    vocab = run("vocab", tmp_path / ODD, text_file, "--vocab-size", 280, "--held-out", "1K", *folders)
    encode = run("encode", tmp_path / ODD, "--tokenizer", tmp_path / f"out{ODD}", *folders)
    compare = ("evaluate-tokenizers", tmp_path / ODD, "--tokenizer", tokenizer_folder)
    table, rows = run(*compare), run(*compare, "--json")
    for done in (vocab, encode, table, rows):
        assert done.returncode == 0, done.stderr
        assert (done.stdout + done.stderr).replace("\n", "").isprintable()
    assert str(tmp_path / ODD) in json.loads((tmp_path / f"out{ODD}" / "vocab_report.json").read_bytes())["held_out"]
    assert json.loads((tmp_path / f"out{ODD}" / "train.json").read_bytes())["sources"][0]["path"] == str(tmp_path / ODD)
    assert json.loads(rows.stdout)["texts"][0]["text"] == str(tmp_path / ODD)
    assert "[b] :smile:" in table.stdout


@pytest.mark.case("D54")
def test_names_on_a_terminal_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        progress, "_console", lambda: Console(stderr=True, force_terminal=True, width=200, color_system=None)
    )
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    progress.set_up_logging(verbose=False)
    logging.getLogger("trainer.x").info("%s is here", ODD)
    with progress.progress() as new_bar:
        new_bar(f"{ODD}[/b]", 10)(5)
    shown = re.sub(r"\x1b\[(\?25[lh]|2K|1A|\d*m)", "", capsys.readouterr().err)  # what rich's bars move by
    assert shown.replace("\n", "").replace("\r", "").isprintable()
    assert shown.count("\\x1b[2J\\x9b2J") >= 2
    assert "[b] :smile:" in shown


@pytest.mark.case("D54")
def test_advice_names_options_that_there_are() -> None:
    """Every option that a string of the trainer spells is one of its commands', or of another program's."""
    others = {
        "--help",
        "--verbose",
        "--config",
        "--logdir",
        "--head",  # of `ray start`
        "--max-restarts",  # torchrun's
        "--nproc-per-node",
        "--object-spilling-directory",  # of `ray start`
        "--no-special-token",
        "--served-model-name",
        "--checkpoint",
    }
    git = {"--error-unmatch", "--porcelain", "--untracked-files"}
    colors = {"--ink", "--line", "--series"}  # variables of style sheets
    names = {
        name
        for command in app
        if not command.startswith("-")
        for argument in app[command].assemble_argument_collection()
        for name in argument.names
    }
    for path in [*(ROOT / "trainer").rglob("*.py"), *(ROOT / "shared/bpe").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                spelled = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", node.value))
                assert spelled <= names | others | git | colors, path


@pytest.mark.case("D54")
@pytest.mark.parametrize("command", ["encode", "tokens", "vocab", "evaluate", "evaluate-tokenizers"])
def test_commands_that_read_text_have_the_options_that_its_errors_advise(command: str) -> None:
    names = {name for argument in app[command].assemble_argument_collection() for name in argument.names}
    assert {"--memory-limit", "--text-field", "--errors"} <= names
