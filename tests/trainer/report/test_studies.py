"""What a report shows of a sweep's study: its notes, the edge of stability, and variants beside their baseline."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.report.test_page import Elements, make_run, report, row, write_outcomes
from trainer.report.build import build_report
from trainer.report.comparison import varied_number
from trainer.report.figures import FigureFiles
from trainer.report.selection import read_runs
from trainer.report.studies import read_findings

pytestmark = pytest.mark.extended

DIVERGED: dict[str, Any] = {"finished": False, "records": [{"step": 41, "loss": None}]}


def ablations(folder: Path) -> Path:
    make_run(folder / "baseline", end=2.0)
    make_run(folder / "norm=post", end=2.3)
    make_run(folder / "norm=none", end=2.0, **DIVERGED)
    changes = {"baseline": {}, "norm=post": {"norm": "post"}, "norm=none": {"norm": "none"}}
    write_outcomes(folder, changes, baseline="baseline", notes=["Baseline: pre-norm <b>; 5 parameters."])
    return folder


def rates(folder: Path, *stable: float, diverged: tuple[float, ...] = (), seed: int | None = None) -> Path:
    changes = {}
    for rate in (*stable, *diverged):
        name = f"learning_rate={rate:g}" + ("" if seed is None else f",seed={seed}")
        make_run(folder / name, end=2.0, settings={"learning_rate": rate}, **(DIVERGED if rate in diverged else {}))
        changes[name] = {"learning_rate": rate} | ({} if seed is None else {"seed": seed})
    write_outcomes(folder, changes)
    return folder


def test_a_baseline_is_marked_and_the_others_are_beside_it(tmp_path: Path) -> None:
    page = report(tmp_path, ablations(tmp_path / "s"))
    assert page.sections["notes"]["studies"] == ["Baseline: pre-norm <b>; 5 parameters."]
    baseline, post = row(page, "baseline"), row(page, "norm=post")
    assert (baseline["mark"], baseline["is_best"], post["mark"]) == ("baseline", True, "")
    assert (baseline["less the baseline's"], post["less the baseline's"]) == ("baseline", "+0.3000")
    assert post["validation loss"] == "2.5000"
    assert read_findings(read_runs([tmp_path / "s"])).differences == {
        "baseline": "baseline",
        "norm=none": "",
        "norm=post": "+0.3000",
    }
    assert (tmp_path / "out" / "page" / "final-loss-by-run.png").is_file()


def test_the_edge_of_stability_is_marked(tmp_path: Path) -> None:
    page = report(tmp_path, rates(tmp_path / "s", 1e-3, 3e-3, diverged=(0.1, 1.0)))
    assert page.sections["notes"]["studies"] == [
        "Edge of stability: between 0.003, the largest stable rate, and 0.1, which diverged."
    ]
    expected = {"learning_rate=0.003": "largest stable rate", "learning_rate=0.1": "smallest diverging rate"}
    for place in (page.sections["comparison"]["rows"], page.sections["runs"]):
        assert {each["name"]: each["mark"] for each in place if each["mark"]} == expected
    assert "Shaded: the edge of stability, between 0.003 and 0.1." in page.sections["pictures"][0]["note"]


def test_a_run_that_its_sweep_has_not_recorded_yet_has_no_mark(tmp_path: Path) -> None:
    """As the one at work: its rate is not known to be any."""
    folder = rates(tmp_path / "s", 1e-3, 3e-3)
    make_run(folder / "learning_rate=0.01", end=2.0, finished=False)
    assert read_findings(read_runs([folder])).marks == {}


def test_sweeps_of_one_report_have_edges_of_their_own(tmp_path: Path) -> None:
    """As of two sizes of model: what is stable in one may diverge in the other."""
    small, large = (
        rates(tmp_path / "small", 1e-3, 0.1, diverged=(1.0,)),
        rates(tmp_path / "large", 1e-3, diverged=(0.1,)),
    )
    notes = read_findings(read_runs([small, large])).notes
    assert [re.sub(r"Edge of stability: |, the .*", "", note) for note in notes] == [
        "small: between 0.1",
        "large: between 0.001",
    ]


def test_seeds_share_a_place_on_the_axis_of_results(tmp_path: Path) -> None:
    one = rates(tmp_path / "one", 1e-3, 3e-3, seed=1)
    two = rates(tmp_path / "two", 1e-3, 3e-3, seed=2)
    assert varied_number(read_runs([one, two])) == "learning_rate"
    only_seeds = tmp_path / "seeds"
    for seed in (1, 2):
        make_run(only_seeds / f"seed={seed}", end=2.0, settings={"seed": seed})
    write_outcomes(only_seeds, {"seed=1": {"seed": 1}, "seed=2": {"seed": 2}})
    assert varied_number(read_runs([only_seeds])) == "seed"


@pytest.mark.parametrize("notes", [5, [1], {"a": "b"}, None])
def test_notes_of_another_kind_are_left_out(tmp_path: Path, notes: Any) -> None:
    ablations(tmp_path / "s")
    write_outcomes(tmp_path / "s", {"baseline": {}}, baseline="baseline", notes=notes)
    assert read_findings(read_runs([tmp_path / "s"])).notes == []


def test_figures_are_svg_files_where_asked(tmp_path: Path) -> None:
    """Each a document of its own, with the names of the runs, and the same for the same runs."""
    folder, pages = ablations(tmp_path / "s"), []
    for number in (1, 2):
        files = FigureFiles(tmp_path / f"figures{number}", "svg")
        build_report([folder], tmp_path / "page.html", files=files, prompt=None, models=False, device="cpu")
        pages.append({path.name: path.read_text() for path in files.folder.iterdir()})
    assert pages[0] == pages[1]
    assert "final-loss-by-run.svg" in pages[0]
    for text in pages[0].values():
        assert text.startswith("<?xml")
        tags = "".join(re.findall(r"<(?:path|use|g|text)[^>]*>", text))
        assert re.search(r"\d\.\d\d", tags)
        assert not re.search(r"\d\.\d{3}", tags)
    assert "norm=post" in pages[0]["loss-by-step.svg"]
    assert not (tmp_path / "page").exists()
    assert len(Elements(tmp_path / "page.html").sections["pictures"]) == 1
