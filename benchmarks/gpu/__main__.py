"""The command line: runs the parts one after another, each in a process of its own, and saves what each has found."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.environment import ROOT, InstallError, prepare
from benchmarks.gpu.rows import Row, note, parse
from benchmarks.gpu.vllm import Vllm
from benchmarks.host import describe_machine
from benchmarks.report import table


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Attributes:
        name: For `--only`, and the module in this package.
        about: What it does.
        least_seconds: Without so much time left it is skipped.
        share: Of the time left, the most that it may take.
    """

    name: str
    about: str
    least_seconds: float
    share: float


PARTS = (
    Part("runner", "the engine's runner: isolation, equality, graphs, faults", 20, 0.5),
    Part("serving", "the service at 1 to 128 clients, beside vLLM where it installs", 60, 0.65),
    Part("training", "training: speed, resuming, memory, --compile", 40, 0.7),
    Part("tests", "the tests marked cuda", 20, 1.0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; 0 if all ran and every check passed, else 1."""
    options = _options(arguments)
    end = time.monotonic() + 60 * options.minutes
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    with tempfile.TemporaryDirectory(prefix="ownlm-gpu-") as work, contextlib.ExitStack() as stack:
        rows: list[Row] = []
        results = _Results(options, rows)
        try:
            python = prepare(max(30.0, end - time.monotonic() - 60))
        except InstallError as error:
            rows.append(Row("install", "packages", f"failed: {error}", met=False))
            results.save()
            print(results.render())
            return 1
        results.describe_device(python)
        vllm = stack.enter_context(Vllm(wanted=not options.quick))
        for part in chosen:
            left = end - time.monotonic()
            if left < part.least_seconds:
                rows.append(Row(part.name, part.about, f"skipped: {max(left, 0):.0f} s were left", met=False))
            else:
                share = 1.0 if part is chosen[-1] else part.share
                extra = vllm.arguments() if part.name == "serving" else []
                _run(part, [python, *_command(part, options, work), *extra], left * share, rows)
            results.save()
        print(results.render())
    return 0 if all(row.met is not False for row in rows) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="What only a GPU can show.")
    parser.add_argument("--minutes", type=_minutes, default=8.0, help="that all of it may take; 8 by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu is for trying the benchmark")
    parser.add_argument("--quick", action="store_true", help="tiny models and few requests: every branch, no figures")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts")
    parser.add_argument("--output", type=Path, default=Path("gpu-benchmark.json"), help="of the JSON file")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu needs --quick: its figures are not those of a GPU")
    if not options.output.absolute().parent.is_dir():
        parser.error(f"--output {options.output}: there is no folder {options.output.absolute().parent}")
    return options


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {24 * 60}, got {text}")
    return minutes


def _command(part: Part, options: argparse.Namespace, work: str) -> list[str]:
    folder = Path(work) / part.name
    folder.mkdir()
    command = ["-m", f"benchmarks.gpu.{part.name}", "--device", options.device, "--work", str(folder)]
    return [*command, "--quick"] if options.quick else command


def _run(part: Part, command: Sequence[str], seconds: float, rows: list[Row]) -> None:
    """Run a part, and take its rows as they come; what it prints otherwise is shown."""
    note(f"{part.name}: {part.about} (at most {seconds:.0f} s)")
    begun, seen = time.monotonic(), len(rows)
    command = [*command, "--seconds", f"{seconds:.0f}"]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        timer = threading.Timer(seconds, _kill, [process])
        timer.start()
        errors: list[str] = []
        reader = threading.Thread(target=_pass_on, args=(process, errors))
        reader.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                row = parse(line)
                if row is not None:
                    rows.append(row)
                    note(f"  {row.what}: {row.result}")
            code = process.wait()
        finally:
            timer.cancel()
            _kill(process)  # and what it started, as after Ctrl-C
        reader.join()
    took = time.monotonic() - begun
    if code and took >= seconds:
        rows.append(Row(part.name, "time", f"ended after {took:.0f} s, with {len(rows) - seen} results", met=False))
    elif code:
        last = " ".join("".join(errors[-4:]).split())[-300:]
        rows.append(Row(part.name, "failed", f"exit code {code}: {last}", met=False))


def _kill(process: "subprocess.Popen[str]") -> None:
    """End a part with the servers that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _pass_on(process: "subprocess.Popen[str]", errors: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        errors.append(line)
        sys.stderr.write(line)


class _Results:
    """The table and the file."""

    def __init__(self, options: argparse.Namespace, rows: list[Row]) -> None:
        self._output, self._rows = options.output, rows
        self._head = {
            "date": time.strftime("%Y-%m-%d"),
            "command": shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]]),
            "machine": describe_machine(),
            "device": options.device,
        }

    def describe_device(self, python: str) -> None:
        """Add the GPU's name, and the versions that matter."""
        code = (
            "import json, torch; gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None;"
            "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'gpu': gpu}))"
        )
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        self._head |= json.loads(done.stdout) if done.returncode == 0 else {"torch": done.stderr[-300:]}

    def save(self) -> None:
        """Write what there is so far, whole or not at all."""
        new = self._output.with_name(self._output.name + ".new")
        new.write_text(json.dumps(self._head | {"rows": [asdict(row) for row in self._rows]}, indent=1) + "\n")
        new.replace(self._output)

    def render(self) -> str:
        """The table for docs/lab/benchmarks.md."""
        marks = {True: "yes", False: "no", None: ""}
        head = f"{self._head.get('gpu') or self._head['device']}, torch {self._head.get('torch')}, {self._head['date']}"
        cells = [(row.part, row.what, row.result.replace("|", "/"), marks[row.met]) for row in self._rows]
        return f"{head}\n\n{table(('part', 'what', 'result', 'as it should be'), cells)}"


if __name__ == "__main__":
    raise SystemExit(main())
