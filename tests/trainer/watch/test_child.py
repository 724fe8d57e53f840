"""The page of `train --watch`: in a process of its own, which ends with the run however that ends."""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from trainer.commands import sweep as commands
from trainer.settings.train import TrainSettings, to_toml
from trainer.sweep.runner import Sweep
from trainer.watch.child import page_about
from trainer.watch.server import LOCAL, PORT, bind

pytestmark = pytest.mark.extended

Change = Callable[..., TrainSettings]


def address(lines: object) -> str:
    for line in lines:  # type: ignore[attr-defined]
        if "watch it at" in line:
            return str(line.split()[-1])
    pytest.fail("no address")


def wait_until_gone(url: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            return
        time.sleep(0.05)
    pytest.fail(f"{url} is still served")


def test_it_is_there_while_the_context_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On another port where another program has ours."""
    caplog.set_level(logging.INFO)
    try:
        listener = bind(LOCAL, PORT)
    except Exception:
        listener = None  # some program has it already
    with page_about(tmp_path / "run"):
        url = address(caplog.messages)
        assert not url.endswith(f":{PORT}")
        with httpx.stream("GET", url + "/events", trust_env=False, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert json.loads(next(lines)[6:])["sections"]["waiting"] == [str(tmp_path / "run")]
            children = [path for path in Path("/proc").glob("[0-9]*") if _is_about(path, tmp_path / "run")]
            assert [os.getpriority(os.PRIO_PROCESS, int(path.name)) for path in children] == [19]
    wait_until_gone(url)
    if listener is not None:
        listener.close()


def _is_about(process: Path, folder: Path) -> bool:
    try:
        return os.fsencode(folder) in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def test_other_ranks_start_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process"))
    with page_about(tmp_path):
        pass


def test_where_it_cannot_be_served_the_work_goes_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with page_about(tmp_path):
        assert "cannot be served" in caplog.text


def test_a_sweep_has_one_page_for_all_its_runs(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    served, trained = [], []
    monkeypatch.setattr(commands, "page_about", lambda folder: contextlib.nullcontext(served.append(folder)))

    def run(sweep: Sweep) -> list[object]:
        trained.extend(run.settings.watch.watch for run in sweep.runs)
        return []

    monkeypatch.setattr(Sweep, "run", run)
    common = {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}
    watched = commands.SweepSettings(**common | {"watch": dataclasses.replace(settings.watch, watch=True)})
    commands.sweep(settings=watched, variation=commands.VariationSettings(grid=("seed=1,2",)))
    assert (served, trained) == ([settings.output], [False, False])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_run(settings: TrainSettings, change: Change, number: signal.Signals, tmp_path: Path) -> None:
    """Killed or stopped; the settings that a resumption reads ask for no page."""
    config = tmp_path / "config.toml"
    config.write_text(to_toml(change(settings, max_steps=100_000, checkpoint_interval=1_000)))
    command = [sys.executable, "-m", "trainer", "train", "--config", str(config), "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        url = address(process.stderr)
        with httpx.stream("GET", url + "/events", trust_env=False, timeout=60) as stream:
            lines = stream.iter_lines()
            next(line for line in lines if '"loss"' in line)
            process.send_signal(number)
            rest = list(lines)
        assert "event: end" in rest
        assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    wait_until_gone(url)
    assert "watch = false" in (settings.output / "train.toml").read_text()
    (last,) = [json.loads(line[6:]) for line in rest if '"now":[]' in line]
    state = last["sections"]["comparison"]["rows"][0]["cells"][-1]
    assert state.startswith("stopped, step" if number == signal.SIGINT else "killed, step")
