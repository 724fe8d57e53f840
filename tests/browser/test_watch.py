"""The page of `watch` in Chromium: runs at work, killed, resumed, returned to a checkpoint; several; any text."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import Watched, check_accessibility, check_layout
from tests.trainer.conftest import change, settings, text_file, token_folder, tokenizer_folder
from tests.trainer.report.test_page import make_run
from tests.trainer.watch.conftest import watch
from trainer.runs.metrics import MetricsFile, read_metrics
from trainer.settings.train import TrainSettings, to_toml

__all__ = ["change", "settings", "text_file", "token_folder", "tokenizer_folder", "watch"]

Serve = Callable[..., str]
HOSTILE = (
    "<img src=x onerror=alert(1)> </script><script>alert(2)</script> \u202eright to left\u202c \0 " + "x" * 100_000
)


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.locator("figcaption", has_text=re.compile(f"^{title}")))


def summary(page: Page, title: str) -> Locator:
    """What a screen reader says of a chart's lines."""
    return chart(page, title).locator(".visually-hidden")


@contextmanager
def training(config: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trainer", "train", "--config", str(config), *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_run_that_appears_is_killed_and_resumed(
    page: Page, watch: Serve, settings: TrainSettings, change: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    folder, config = settings.output, tmp_path / "config.toml"
    more = {"max_steps": 100_000, "checkpoint_interval": 20, "sample_interval": 30, "eval_interval": 25, "keep": 2}
    config.write_text(to_toml(change(settings, **more)))
    page.goto(watch(folder))
    expect(page.locator("#waiting")).to_have_text(f"Waiting for a run in {folder}.")
    expect(page.locator("#status")).to_have_text("Live.")
    with training(config) as process:
        expect(page.locator("#now")).to_contain_text("running, step ")
        expect(page.locator("#now")).to_contain_text("time left")
        expect(page.locator("#waiting")).to_be_empty()
        expect(page.locator("#samples .text").first).to_contain_text("the")
        expect(summary(page, "Loss")).to_contain_text("validation: ")
        process.kill()
    expect(page.locator("#comparison")).to_contain_text("killed, step ")
    expect(page.locator("#now")).to_be_empty()
    killed_at = max(record["step"] for record in read_metrics(folder / "metrics.jsonl"))
    with training(folder / "train.toml", "--resume") as process:
        expect(page.locator("#now")).to_contain_text("running, step ")
        expect(page.locator("#made dt", has_text="resumed")).to_be_visible()
        page.wait_for_function(
            "killed => Number(/step ([\\d,]+) of/.exec(document.querySelector('#now').textContent)?.[1]"
            ".replaceAll(',', '')) > killed",
            arg=killed_at,
        )
        process.send_signal(signal.SIGINT)
        process.wait()
    expect(page.locator("#comparison")).to_contain_text("stopped, step ")
    losses = [record["step"] for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]
    assert losses == list(range(1, len(losses) + 1)), "each step once"
    number = str(len(losses)) if len(losses) <= 1_000 else r"\d+"
    expected = rf"training: {number} points, step 1 to {f'{losses[-1]:,}'.replace(',', ',?')}"
    expect(summary(page, "Loss")).to_contain_text(re.compile(expected))


def test_a_return_to_a_checkpoint_takes_points_back(page: Page, watch: Serve, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", end=2.0, finished=False)
    page.goto(watch(folder))
    expect(summary(page, "Loss")).to_contain_text("training: 40 points, step 1 to 40")
    metrics = MetricsFile(folder / "metrics.jsonl")
    metrics.rewind(30)
    metrics.write(step=30, tokens=1920, seconds=61.0, event="rolled back from step 40 to 30: a spike")
    metrics.write(step=31, tokens=1984, seconds=62.0, loss=1.0)
    expect(summary(page, "Loss")).to_contain_text("training: 31 points, step 1 to 31, from 6 to 1.")
    expect(page.locator("#events")).to_contain_text("rolled back from step 40 to 30: a spike")
    plot = chart(page, "Gradient norm").locator("[tabindex]").first
    plot.focus()
    plot.press("End")
    expect(chart(page, "Gradient norm").locator("output")).to_contain_text("rolled back from step 40 to 30")


def test_several_runs_and_the_view_by_keyboard(page: Page, watch: Serve, tmp_path: Path) -> None:
    """Which run is shown, axes and smoothing; the address of the page keeps the view."""
    for name, end in (("fast", 2.0), ("slow", 3.0)):
        make_run(tmp_path / "s" / name, end=end, settings={"learning_rate": end / 1000})
    url = watch(tmp_path / "s")
    page.goto(url)
    expect(page.locator("#comparison tbody tr")).to_have_count(2)
    expect(page.locator("#comparison tbody tr").first).to_contain_text("fast ★ best")
    expect(summary(page, "Loss")).to_contain_text("slow validation: 4 points")
    page.get_by_label("fast").press("Space")
    expect(summary(page, "Loss")).not_to_contain_text("fast")
    page.get_by_label("log x").press("Space")
    page.get_by_label("log y").press("Space")
    slider = page.get_by_role("slider")
    slider.press("End")
    expect(page.locator(".chart-controls output")).to_have_text("0.99")
    slider.press("ArrowLeft")
    page.get_by_label("x axis").select_option("time")
    expect(summary(page, "Loss")).to_contain_text("slow training: 40 points, time 0:00:02 to 0:01:20")
    page.get_by_label("x axis").select_option("tokens")
    expect(summary(page, "Loss")).to_contain_text("slow training: 40 points, tokens 64 to 2,560")
    again = page.url
    page.goto("about:blank")
    page.goto(again)
    expect(page.locator(".chart-controls output")).to_have_text("0.98")
    expect(page.get_by_label("log x")).to_be_checked()
    expect(page.get_by_label("x axis")).to_have_value("tokens")
    expect(summary(page, "Loss")).to_contain_text("slow training: 40 points, tokens 64 to 2,560")
    make_run(tmp_path / "s" / "new", end=1.0)
    expect(page.locator("#comparison tbody tr").first).to_contain_text("new ★ best")
    expect(summary(page, "Loss")).to_contain_text("new training: 40 points")


def test_what_has_no_place_on_an_axis_is_not_drawn(page: Page, watch: Serve, tmp_path: Path) -> None:
    """As the losses of a run that recorded no time; NaN and what is not above 0 are gaps."""
    odd = make_run(tmp_path / "odd", end=2.0, finished=False)
    lines = [{"step": step, "loss": [None, 1e30, -1.0, 2.0][step % 4]} for step in range(1, 9)]
    (odd / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_run(tmp_path / "usual", end=2.0)
    page.goto(watch(tmp_path))
    expect(summary(page, "Loss")).to_contain_text("odd training: 8 points, step 1 to 8")
    page.get_by_label("x axis").select_option("time")
    expect(summary(page, "Loss")).not_to_contain_text("odd")
    expect(summary(page, "Loss")).to_contain_text("usual training: 40 points, time 0:00:02 to 0:01:20")
    page.get_by_label("log y").press("Space")
    page.get_by_label("x axis").select_option("step")
    expect(summary(page, "Loss")).to_contain_text("2 points are not above 0")


def test_any_text_is_shown_and_nothing_is_run(page: Page, watch: Serve, tmp_path: Path) -> None:
    records = [{"step": 5, "sample": HOSTILE}, {"step": 6, "event": HOSTILE}]
    name = HOSTILE[:150].replace("/", "|").replace("\0", "")
    folder = make_run(tmp_path / name, end=2.0, finished=False, records=records, settings={"note" * 40: HOSTILE[:300]})
    start: dict[str, Any] = {
        "step": 0,
        "command": HOSTILE,
        "git": None,
        "versions": {},
        "device": "cpu",
        "processes": 1,
    }
    start |= {"time": "2026-01-01T00:00:00+00:00", "machine": {"name": HOSTILE, "cpu": "a", "cpus": 1}}
    (folder / "run.json").write_text(json.dumps({"starts": [start]}))
    page.goto(watch(folder))
    expect(page.locator("#samples .text")).to_contain_text("<img src=x onerror=alert(1)> </script><script>")
    expect(page.locator("#samples .text")).to_contain_text("U+202Eright to leftU+202C ␀ xxxx")
    expect(page.locator("#events")).to_contain_text("</script>")
    expect(page.locator("h1")).to_contain_text("<img src=x")
    assert page.locator("main img, main script").count() == 0
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    check_layout(page)


def test_it_is_accessible(page: Page, watch: Serve, tmp_path: Path) -> None:
    for name in ("one", "two"):
        records = [{"step": 5, "sample": "Once"}, {"step": 6, "event": "skipped: a spike"}]
        make_run(tmp_path / name, end=2.0, records=records, finished=False)
    page.goto(watch(tmp_path))
    expect(page.locator("#comparison tbody tr")).to_have_count(2)
    check_layout(page)
    check_accessibility(page)


def test_new_points_leave_alone_what_a_person_does(page: Page, watch: Serve, tmp_path: Path) -> None:
    """What was opened stays open, and the focus stays where it is."""
    for name in ("one", "two"):
        make_run(tmp_path / name, end=2.0, records=[{"step": 5, "sample": "Once"}], finished=False)
    page.goto(watch(tmp_path))
    second = page.locator("#samples details").nth(1)
    second.locator("summary").click()
    page.get_by_role("region", name="Comparison of the runs").focus()
    MetricsFile(tmp_path / "one" / "metrics.jsonl").write(step=41, tokens=2624, seconds=82.0, sample="Twice", loss=1.0)
    expect(page.locator("#samples")).to_contain_text("Twice")
    expect(summary(page, "Loss")).to_contain_text("one training: 41 points")
    expect(second).to_have_attribute("open", "")
    expect(page.get_by_role("region", name="Comparison of the runs")).to_be_focused()


def test_a_server_that_is_gone_and_comes_back(
    new_context: Callable[..., BrowserContext], watched: Watched, tmp_path: Path
) -> None:
    watched.expected += ["net::ERR"]
    folder = make_run(tmp_path / "run", end=2.0, finished=False)
    command = [sys.executable, "-m", "trainer", "watch", str(folder), "--port"]
    page = new_context().new_page()
    with subprocess.Popen([*command, "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = re.search(r"http://\S+:(\d+)", process.stderr.readline())
        assert url is not None
        page.goto(url[0].rstrip(";"))
        expect(summary(page, "Loss")).to_contain_text("training: 40 points")
        process.kill()
    expect(page.locator("#status")).to_have_text("No connection to the server of this page; trying again.")
    MetricsFile(folder / "metrics.jsonl").write(step=41, tokens=2624, seconds=82.0, loss=1.0)
    with subprocess.Popen([*command, url[1]], stderr=subprocess.DEVNULL) as process:
        expect(page.locator("#status")).to_have_text("Live.")
        expect(summary(page, "Loss")).to_contain_text("training: 41 points")
        process.kill()


@pytest.mark.parametrize("state", ["#%7B", "#null", '#{"x":"__proto__","smoothing":"<b>","xLog":7}', "#[1]"])
def test_an_address_of_another_kind_is_ignored(page: Page, state: str, tmp_path: Path, watch: Serve) -> None:
    make_run(tmp_path / "run", end=2.0)
    page.goto(watch(tmp_path) + state)
    expect(summary(page, "Loss")).to_contain_text("training: 40 points, step 1 to 40")
