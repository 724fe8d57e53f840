"""The recording of a terminal: a real command in a real pseudo-terminal, and what its SVG shows when."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyte")

ROOT = Path(__file__).resolve().parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


def recorded(tmp_path: Path, shell: str, *options: str) -> list[tuple[str, str]]:
    """The rows of the SVG: style and text."""
    output = tmp_path / "out.svg"
    command = [sys.executable, str(ROOT / "scripts" / "terminal_recording.py"), "--output", str(output), *options]
    done = subprocess.run([*command, "sh", "-c", shell], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    root = ElementTree.parse(output).getroot()
    return [(text.get("style") or "", "".join(text.itertext())) for text in root.iter(f"{SVG}text")]


def test_what_stays_and_what_passes(tmp_path: Path) -> None:
    shell = r"""echo 'a <b> & "c"'; printf 'first'; sleep 0.5; printf '\rother\n'; echo ready; sleep 60"""
    rows = recorded(tmp_path, shell, "--until", "ready")
    stays = [text for style, text in rows if "hide" in style]
    passes = [text for style, text in rows if "show" in style]
    assert {'a <b> & "c"', "other", "ready"} <= {*stays}
    assert "first" in passes


@pytest.mark.slow
def test_it_is_as_long_as_said(tmp_path: Path) -> None:
    """Five pauses of 0.6 s, which is the longest that is played, in one second, after the first second."""
    shell = "for i in 1 2 3 4 5; do echo $i; sleep 0.7; done; echo ready; sleep 60"
    rows = recorded(tmp_path, shell, "--until", "ready", "--seconds", "1")
    [style] = [style for style, text in rows if text == "ready"]
    played = re.search(r"hide ([0-9.]+)s", style)
    assert played is not None
    assert float(played[1]) == 2.15, "after a second and --seconds, and one frame to look at the screen"


def test_colors_and_columns(tmp_path: Path) -> None:
    recorded(tmp_path, r"printf 'a  \033[1;32mgreen\033[0m\nready'; sleep 60", "--until", "ready")
    svg = (tmp_path / "out.svg").read_text()
    assert '<tspan x="40" textLength="40" fill="#5fce84" font-weight="bold">green</tspan>' in svg
    assert "<script" not in svg


def test_a_command_that_ends_too_early_is_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "terminal_recording.py"), "--output", str(tmp_path / "a.svg")]
    done = subprocess.run(
        [*command, "--until", "never", "echo", "a"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (1, "the command ended and never wrote 'never'\n")
    assert not (tmp_path / "a.svg").exists()
