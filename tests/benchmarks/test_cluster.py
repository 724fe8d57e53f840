"""The benchmark of a cluster: the model of nodes, and what it is made from."""

import sys
from pathlib import Path

import pytest

from benchmarks import cluster
from benchmarks.report import table
from tests.docs.pages import DOCS
from tests.trainer.made_text import SEPARATOR, made_documents

MEASURED = cluster.Constants(
    counting=155.7e6, joining=19.44e6, encoding=91.45e6, cleaning=6.326e6, comparing=3.682e-6, document_bytes=4925,
    heaps_factor=9.139, heaps_exponent=0.5666,
)  # fmt: skip


def test_the_page_has_what_follows_from_the_constants() -> None:
    page = (DOCS / "how-to" / "a-terabyte-of-text.md").read_text(encoding="utf-8")
    assert str(MEASURED) in " ".join(page.split())
    assert table(cluster.HEADER, [cluster.terabyte(MEASURED, nodes) for nodes in cluster.NODES]) in page


def test_the_slowest_of_what_runs_at_the_same_time_bounds_a_stage() -> None:
    """Worked out by hand: 1 TB, 32 cores and 3 GB/s a node."""
    constants = cluster.Constants(
        counting=1e8, joining=1e12, encoding=1e9, cleaning=1e7, comparing=1e-6, document_bytes=1e4, heaps_factor=1.0,
        heaps_exponent=0.5,
    )  # fmt: skip
    nodes, clean, bound, *rest, dollars = cluster.terabyte(constants, 10)
    comparing = 1e8 * (1e-6 + 450 / 3e9)
    seconds = 1e12 / 320e7 + comparing, 1e12 / 30e9, 1e12 * (1 + 2 / 4.4) / 30e9
    assert (nodes, clean, bound) == ("10", f"{seconds[0] / 60:.1f} min", "both passes")
    assert rest == [f"{seconds[1] / 60:.1f} min", "reading", f"{seconds[2] / 60:.1f} min", "reading and writing"]
    assert dollars == f"{10 * 1.5 * sum(seconds) / 3600:.2f}"


def test_the_constants_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = made_documents(200_000)
    (tmp_path / "text.txt").write_text(SEPARATOR.join(documents), encoding="utf-8")
    monkeypatch.setattr(cluster, "COMPARED", 2000)
    monkeypatch.setattr(cluster, "REPEATS", 1)
    monkeypatch.setattr(sys, "argv", ["cluster", "--model", "--text", str(tmp_path / "text.txt")])
    cluster.main()
    printed = capsys.readouterr().out
    assert "a core cleans" in printed
    assert printed.count("\n| ") == 1 + len(cluster.NODES) + 1
