"""The pages of docs/ and the examples in them, and how a page's commands are run.

A comment on the line before an example says what is different about it:
`<!-- test: skip, REASON -->` does not run it, `<!-- test: needs PACKAGE, OTHER -->` only where they are installed,
`<!-- test: background -->` starts a service that the next examples call,
`<!-- test: with NAME -->` is left to a test that has NAME, such as a cluster, and replaces the addresses,
`<!-- test: output -->` (a `text` block) demands its lines in what the example before it printed.
A Python example that begins with `# NAME.py` is written to that file; any other is run. A command in a cell of a table
(`python -m MODULE ARGUMENTS`, one for each row) is an example too.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^(?:<!-- test: ([^\n]*) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"^\|.*?`(python -m \w+(?:\.\w+)* [^`]+)`", re.MULTILINE)
_ADDRESS = "127.0.0.1:8000"
_CURL = 'curl() { command curl -sS --fail-with-body --max-time 240 "$@" && echo; }\n'

# Stands for `python` and `torchrun`: a run that is documented with thousands of steps takes a few of a small model.
_SMALL = """#!{python}
import os, re, sys

arguments = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "torchrun":
    arguments = ["-m", "torch.distributed.run", *arguments]
if "trainer" in arguments and ("train" in arguments or "sweep" in arguments):
    def put(name, value):
        if name in arguments:
            arguments[arguments.index(name) + 1] = value
        else:
            arguments.extend([name, value])

    steps = int(arguments[arguments.index("--max-steps") + 1]) if "--max-steps" in arguments else 0
    put("--max-steps", str(max(4, steps // 250)))
    for place, word in enumerate(arguments):  # schedules count in steps, too: their stages have one each
        stages = iter(range(1, len(word)))
        if re.search("(batch|context)[-_]schedule", " ".join(arguments[place - 1 : place + 1])):
            arguments[place] = re.sub(r":[0-9]+", lambda _: f":{{next(stages)}}", word)
    small = {{"d-model": 32, "num-layers": 2, "num-heads": 2, "d-ff": 48, "context-length": 96}}
    if "--init" in arguments:  # whose architecture it is
        small = {{}}
    small |= {{"batch-size": 2, "eval-tokens": 500, "sample-tokens": 8, "threads": 1, "device": "cpu"}}
    for name, value in small.items():
        put("--" + name, str(value))
os.execv({python!r}, [{python!r}, *arguments])
"""


@dataclass(frozen=True)
class Example:
    """A fenced block of a page, or a command of a table: language, what the comment before it says, text, place."""

    language: str
    marker: str
    text: str
    place: str


def pages() -> list[Path]:
    """Every page that people read, but for the changelog and the log."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(set(DOCS.rglob("*.md")) - {DOCS / "lab" / "log.md"})]


def examples(page: Path) -> list[Example]:
    text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
    found = [(match.start(), match[2], match[1] or "", match[3]) for match in _BLOCK.finditer(text)]
    found += [(match.start(), "sh", "", match[1]) for match in _CELL.finditer(text)]
    return [Example(*rest, f"{name}:{text.count(chr(10), 0, start) + 1}") for start, *rest in sorted(found)]


def run_page(page: Path, folder: Path, *, small: bool, until: str = "") -> None:
    """Run the examples of a page in a folder, one after another, up to the one that contains `until`."""
    with _runner(folder, small=small) as (environment, background, port):
        printed = ""
        for example in examples(page):
            if example.marker.startswith(("skip", "with ")):
                continue
            if example.marker.startswith("needs ") and not all(map(find_spec, example.marker[6:].split(", "))):
                continue
            text = example.text.replace(_ADDRESS, f"127.0.0.1:{port}")
            if example.marker == "output":
                missing = [line for line in example.text.splitlines() if line not in printed]
                assert not missing, f"{example.place}: not printed: {missing}\n{printed}"
            elif example.language == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
                (folder / name[1]).write_text(text, encoding="utf-8")
            elif example.marker == "background":
                background.append(_start(text, folder, environment, port))
            elif example.language in ("sh", "python"):
                command = ["python", "-c", text] if example.language == "python" else _shell(text)
                printed = _run(command, folder, environment, example.place)
            if until and until in text:
                return


def run_example(page: Path, name: str, folder: Path, instead: "Mapping[str, str]", *, small: bool = False) -> str:
    """Run the example `with NAME` of a page, with what stands for its addresses here; returns what it printed."""
    with _runner(folder, small=small) as (environment, _, _):
        place, text = _example_with(page, name, instead)
        return _run(_shell(text), folder, environment, place)


@contextmanager
def serve_example(page: Path, name: str, folder: Path, instead: "Mapping[str, str]") -> "Iterator[str]":
    """Run the example `with NAME` of a page, a service, until it is ready; gives its address.

    `{port}` in `instead` is its port.
    """
    with _runner(folder, small=False) as (environment, background, port):
        _, text = _example_with(page, name, {old: new.format(port=port) for old, new in instead.items()})
        background.append(_start(text, folder, environment, port))
        yield f"http://127.0.0.1:{port}"


def _example_with(page: Path, name: str, instead: "Mapping[str, str]") -> tuple[str, str]:
    [example] = [example for example in examples(page) if example.marker == f"with {name}"]
    text = example.text
    for old, new in instead.items():
        assert old in text, f"{example.place}: no {old!r}"
        text = text.replace(old, new)
    return example.place, text


def _shell(text: str) -> list[str]:
    return ["bash", "-e", "-o", "pipefail", "-c", _CURL + text]


def _run(command: list[str], folder: Path, environment: dict[str, str], place: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=540
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"{place}:\n{command[-1]}\n{printed}"
    assert '"error"' not in done.stdout, f"{place}:\n{command[-1]}\n{printed}"
    return printed


@contextmanager
def _runner(folder: Path, *, small: bool) -> "Iterator[tuple[dict[str, str], list[subprocess.Popen[bytes]], int]]":
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    for name in ("python", "torchrun"):
        program = programs / name
        plain = f'#!/bin/sh\nexec {sys.executable} {"-m torch.distributed.run " if name == "torchrun" else ""}"$@"\n'
        program.write_text(_SMALL.format(python=sys.executable) if small else plain, encoding="utf-8")
        program.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OWNLM_")}
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "OWNLM_PORT": str(port), "OWNLM_THREADS": "1"}
    background: list[subprocess.Popen[bytes]] = []
    try:
        yield environment, background, port
    finally:
        for process in background:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(text: str, folder: Path, environment: dict[str, str], port: int) -> "subprocess.Popen[bytes]":
    output = (folder / "service.log").open("wb")
    command = ["bash", "-c", text]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
    )
    output.close()
    deadline = time.monotonic() + 240
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return process
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{text}\n{(folder / 'service.log').read_text()}")
        time.sleep(0.05)
