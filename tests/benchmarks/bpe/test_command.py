import json
import sys
from pathlib import Path

import pytest

from benchmarks.bpe import __main__ as command
from benchmarks.bpe.jobs import Job, Measurement


@pytest.fixture
def run_command(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command with peers that take a given time for everything, where ours takes a second."""

    def run(*arguments: str, peer_seconds: float) -> int:
        def measure(job: Job) -> dict[str, Measurement]:
            names = ("first", "again", "import", "open", "encode", "learn", "to_bytes first", "to_bytes again")
            seconds = {package: 1e-6 if package == "ownlm" else 1e-6 * peer_seconds for package in job.packages}
            return {
                package: Measurement(dict.fromkeys(names, value), num_bytes=1000, equal=True)
                for package, value in seconds.items()
            }

        monkeypatch.setattr(command, "run", measure)
        monkeypatch.setenv("OWNLM_DATA", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["bpe", "--corpus", str(corpus), *arguments])
        return command.main()

    return run


def test_a_quick_run_fails_where_ours_is_behind(run_command, capsys: pytest.CaptureFixture[str]):
    assert run_command("--quick", "--peers", "tiktoken", peer_seconds=0.99) == 1
    assert "| documents, first: level with tiktoken | 0.99 times tiktoken | **no** |" in capsys.readouterr().out


def test_a_quick_run_passes_where_ours_is_ahead(run_command):
    assert run_command("--quick", "--peers", "tiktoken,tokenizers", peer_seconds=1.01) == 0


def test_a_full_run_fails_where_a_target_is_missed(run_command):
    assert run_command("--only", "encoding", "--peers", "tiktoken", peer_seconds=9) == 1
    assert run_command("--only", "encoding", "--peers", "tiktoken", peer_seconds=11) == 0


def test_a_run_that_judged_nothing_fails(run_command):
    assert run_command("--only", "decoding", "--peers", "tiktoken", peer_seconds=11) == 1


def test_the_last_line_is_json(run_command, corpus: Path, capsys: pytest.CaptureFixture[str]):
    run_command("--quick", "--only", "encoding", "--peers", "tiktoken", peer_seconds=2)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["command"].endswith("--quick --only encoding --peers tiktoken")
    assert {"processor", "processors", "python"} <= set(report["machine"])
    assert {"numba", "numpy", "tiktoken"} == set(report["versions"])
    assert report["corpus"]["bytes"] == corpus.stat().st_size
    assert report["results"]["documents"]["tiktoken"]["seconds"]["first"] == pytest.approx(2e-6)
    assert all(verdict["met"] for verdict in report["verdicts"])


def test_the_tables_are_written_where_asked(run_command, tmp_path: Path):
    page = tmp_path / "page.md"
    run_command("--quick", "--only", "encoding", "--peers", "tiktoken", "--markdown", str(page), peer_seconds=2)
    assert "### Text to ids" in page.read_text("utf-8")


def test_peers_that_are_not_installed_are_told_and_skipped(
    run_command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    find = command.importlib.util.find_spec
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "gigatoken" else find(name))
    assert run_command("--quick", "--only", "encoding", "--peers", "gigatoken,tiktoken", peer_seconds=2) == 0
    captured = capsys.readouterr()
    advice = "pip install -c constraints.txt -e '.[bench]' in the checkout"
    assert f"skipped, since not installed ({advice}): gigatoken" in captured.err
    assert "gigatoken" not in json.loads(captured.out.splitlines()[-1])["results"]["documents"]


def test_unknown_peers_are_refused(run_command):
    with pytest.raises(SystemExit, match="no such peer: tictoken; there are: gigabpe"):
        run_command("--quick", "--peers", "tictoken", peer_seconds=2)
