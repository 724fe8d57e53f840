"""The arithmetic of the benchmark; and, slow, that all of its work runs to the end."""

import json
import subprocess
import sys

import pytest

from benchmarks.busy import __main__ as benchmark


@pytest.mark.parametrize(("rate_beside", "exit_code"), [(251, 0), (249, 1)])
def test_less_than_half_of_the_fair_share_fails(
    rate_beside: float, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processors with two threads of ours: beside two other processes, half of 1,000 a second is fair."""
    monkeypatch.setattr(benchmark, "available_processors", lambda: 2)
    monkeypatch.setattr(benchmark, "make_inputs", lambda folder: None)
    monkeypatch.setattr(benchmark, "_worker", lambda name, folder: pytest.MonkeyPatch.context())
    monkeypatch.setattr(benchmark, "_rates", lambda *arguments: {0: 1_000.0, 2: rate_beside})
    monkeypatch.setattr(sys, "argv", ["busy", "--work", "encoding"])
    with pytest.raises(SystemExit) as stopped:
        benchmark.main()
    assert stopped.value.code == exit_code
    *_, line = capsys.readouterr().out.splitlines()
    assert json.loads(line)["times below the fair share"] == {"encoding": {"2": 500 / rate_beside}}


@pytest.mark.slow
def test_all_work_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.busy", "--quick", "--others", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr  # how fast is no test's business
    rates = json.loads(done.stdout.splitlines()[-1])["rates"]
    assert set(rates) == {"training", "evaluating", "serving", "encoding"}
    assert all(rate > 0 for of_work in rates.values() for rate in of_work.values())
