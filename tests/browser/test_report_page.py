"""The file of `report`, opened from the disk in Chromium: all is there, and nothing is asked for."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import check_accessibility, check_layout
from tests.browser.test_watch import HOSTILE, summary
from tests.trainer.report.test_page import make_run, write_outcomes
from tests.trainer.report.test_profiles import training_content
from trainer.report import build
from trainer.report.build import build_report
from trainer.report.figures import FigureFiles
from trainer.runs.profile import write_profile


def report(tmp_path: Path, *runs: Path) -> str:
    page = tmp_path / "report.html"
    build_report(runs, page, files=FigureFiles(tmp_path / "figures"), prompt=None, models=False, device="cpu")
    return page.as_uri()


def sweep(folder: Path, text: str = "a spike") -> Path:
    """Three runs of different rates; the second one diverged."""
    rates = {"rate=0.001": 1e-3, "rate=0.01": 1e-2, "rate=0.1": 0.1}
    for name, rate in rates.items():
        records: list[dict[str, Any]] = [
            {"step": 5, "sample": f"Once {text}"},
            {"step": 6, "event": f"skipped: {text}"},
        ]
        more = [{"step": 41, "loss": None}] if rate == 0.1 else []
        make_run(folder / name, end=2.0, settings={"learning_rate": rate}, records=records + more, finished=rate < 0.1)
    write_profile(folder / "rate=0.01", training_content(), "")
    write_outcomes(folder, {name: {"learning_rate": rate} for name, rate in rates.items()}, notes=["Held: steps."])
    return folder


def test_everything_is_there_and_nothing_is_asked_for(page: Page, tmp_path: Path) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    url = report(tmp_path, sweep(tmp_path / "s"))
    page.goto(url)
    expect(page).to_have_title("rate=0.001, rate=0.01, rate=0.1 – training")
    expect(page.locator("#status")).to_contain_text("the figures are files in figures/ too")
    expect(page.locator("#notes")).to_contain_text("Edge of stability: between 0.01")
    expect(page.locator("#comparison tbody tr")).to_have_count(3)
    expect(page.locator("#comparison")).to_contain_text("◆ smallest diverging rate")
    expect(page.locator("#comparison")).to_contain_text("diverged, step 41 of 40")
    for title in ("Loss", "Bits per byte", "Learning rate", "Gradient norm", "Throughput"):
        expect(summary(page, title)).to_contain_text("rate=0.1")
    picture = page.get_by_role("img", name="Final loss by learning_rate. A cross at the top is a run that diverged.")
    assert picture.evaluate("async node => { await node.decode(); return node.naturalWidth; }") > 100
    expect(page.locator("#events")).to_contain_text("skipped: a spike")
    expect(page.locator("#samples")).to_contain_text("Once a spike")
    expect(page.locator("#profiles")).to_contain_text("aten::mm")
    expect(page.locator("#made")).to_contain_text("learning_rate=0.001")
    assert [each for each in requests if not each.startswith("data:")] == [url]
    check_layout(page)
    check_accessibility(page)


def test_any_text_is_shown_and_nothing_is_run(page: Page, tmp_path: Path) -> None:
    page.goto(report(tmp_path, sweep(tmp_path / "s", HOSTILE)))
    expect(page.locator("#samples .text").first).to_contain_text("<img src=x onerror=alert(1)> </script><script>")
    expect(page.locator("#events .text").first).to_contain_text("U+202Eright to left")
    check_layout(page)


def test_the_loss_by_position_is_drawn(page: Page, tmp_path: Path, monkeypatch: Any) -> None:
    import numpy as np

    from trainer.report.models import ModelFindings
    from trainer.report.positions import PositionLoss
    from trainer.runs.results import Curve

    curve = Curve(np.array([1.0, 2.0, 4.5]), np.array([3.0, 2.5, 2.0]))
    found = ModelFindings([(9, "drawn now")], PositionLoss(curve, curve), ["step 3: damaged"])
    monkeypatch.setattr(build, "_run_models", lambda *_: {"run": found})
    folder, output = make_run(tmp_path / "run", end=2.0), tmp_path / "report.html"
    build_report([folder], output, files=FigureFiles(tmp_path / "f"), prompt=None, models=True, device="cpu")
    page.goto(output.as_uri())
    for place in ("window", "document"):
        expect(summary(page, f"Loss by position in the {place}")).to_contain_text(
            "3 points, position (tokens) 1 to 4.5"
        )
    expect(page.locator("#samples")).to_contain_text("drawn now")
    expect(page.locator("#missing")).to_contain_text("run: step 3: damaged")


def test_a_view_is_kept_by_the_address_of_a_file(page: Page, tmp_path: Path) -> None:
    page.goto(report(tmp_path, make_run(tmp_path / "run", end=2.0)))
    page.get_by_label("x axis").select_option("time")
    expect(summary(page, "Loss")).to_contain_text("training: 40 points, time 0:00:02 to 0:01:20")
    page.reload()
    expect(page.get_by_label("x axis")).to_have_value("time")
    assert json.loads(page.evaluate("decodeURIComponent(location.hash.slice(1))"))["x"] == "time"
