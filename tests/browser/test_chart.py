"""The line chart of the pages, on a blank page under the pages' security policy."""

import itertools
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from shared.pages import SECURITY_HEADERS
from tests.browser.conftest import check_accessibility, check_layout

HOSTILE = "\u202e<img src=x onerror=alert(1)>\x00</script>"

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Chart</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="assets/base.css">
<link rel="stylesheet" href="assets/table.css">
<link rel="stylesheet" href="assets/chart.css"></head><body><main><h1>Chart</h1></main></body></html>"""

# The rows of pixels, in CSS pixels, that have the color of series 1, for each of the given columns.
ROWS = """(columns) => {
  const canvas = document.querySelector(".chart canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const color = chart.color("--series-1").match(/[0-9]+/g).slice(0, 3).map(Number);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return columns.map((column) => {
    const { data } = copy.getImageData(Math.round(column * ratio), 0, 1, canvas.height);
    const isNear = (row) => color.every((part, i) => Math.abs(data[4 * row + i] - part) < 40);
    const isColored = (row) => data[4 * row + 3] > 128 && isNear(row);
    return Array.from({ length: canvas.height }, (_, row) => row).filter(isColored).map((row) => row / ratio);
  });
}"""


@pytest.fixture
def blank(page: Page, tokenizer_url: str) -> Page:
    """The page with an empty chart, `chart`."""

    def fulfill(route: Route) -> None:
        route.fulfill(body=PAGE, content_type="text/html", headers=SECURITY_HEADERS)

    page.route("**/blank", fulfill)
    page.goto(f"{tokenizer_url}/blank")
    page.evaluate("""async () => {
      const { Chart } = await import("/assets/chart.js");
      globalThis.chart = new Chart({ title: "Loss", unit: "nats", xLabel: "step" });
      document.querySelector("main").append(chart.element);
    }""")
    return page


def draw(page: Page, script: str, argument: Any = None) -> Any:
    """Run a script, then wait until two frames were drawn."""
    result = page.evaluate(script, argument)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return result


def readout(page: Page) -> str:
    return page.locator(".chart-readout").inner_text()


def edges(page: Page) -> tuple[float, float]:
    left, right = page.evaluate("[chart.plot.left, chart.plot.right]")
    return left, right


def test_an_empty_chart_says_so(blank: Page) -> None:
    expect(blank.locator(".chart-readout")).to_have_text("No values yet.")
    draw(blank, "chart.addSeries('a').set([1, 2, 3], [null, NaN, 'x'])")
    assert readout(blank) == "step 3 · a –"
    check_accessibility(blank)


def test_a_line_with_a_gap(blank: Page) -> None:
    """y is 1 all along, and nothing from 40 to 60."""
    draw(blank, "chart.addSeries('a').set([0, 20, 40, 50, 60, 80, 100], [1, 1, 1, null, 1, 1, 1])")
    left, right = edges(blank)
    columns = [left + (right - left) * share for share in (0.1, 0.3, 0.45, 0.55, 0.7, 0.9)]
    drawn = [bool(rows) for rows in blank.evaluate(ROWS, columns)]
    assert drawn == [True, True, False, False, True, True]


def test_a_lone_point_is_seen(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([0, 1, 2, 3, 4], [1, null, 2, null, 1])")
    left, right = edges(blank)
    assert blank.evaluate(ROWS, [(left + right) / 2])[0]


def test_of_many_points_none_that_matters_is_lost(blank: Page) -> None:
    """50,000 points at 0 but one at 1, in one of a thousand columns; and lines of several points stay in theirs."""
    draw(
        blank,
        """() => {
      const xs = Array.from({ length: 50_000 }, (_, i) => i);
      chart.addSeries("a").set(xs, xs.map((x) => x === 31_337 ? 1 : 0));
    }""",
    )
    left, right = edges(blank)
    at = left + (right - left) * 31_337 / 49_999
    beside, spike = blank.evaluate(ROWS, [at - 6, at])
    assert len(spike) > 100
    assert len(beside) <= 3


def test_log_axes_make_a_power_law_straight(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([1, 10, 100, 1000], [1000, 100, 10, 1])")
    draw(blank, "chart.set({ xLog: true, yLog: true })")
    left, right = edges(blank)
    columns = [left + (right - left) * share for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    middles = [sum(rows) / len(rows) for rows in blank.evaluate(ROWS, columns)]
    falls = [later - earlier for earlier, later in itertools.pairwise(middles)]
    assert max(falls) - min(falls) < 1.5
    assert min(falls) > 10


def test_what_a_log_axis_cannot_show_is_said(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([0, 1, 2], [5, -1, 3])")
    draw(blank, "chart.set({ xLog: true, yLog: true })")
    summary = blank.locator(".chart > .visually-hidden")
    expect(summary).to_contain_text("2 points are not above 0")
    expect(summary).to_contain_text("a: 3 points, step 0 to 2, from 5 to 3.")


def test_smoothing_is_the_weighted_mean(blank: Page) -> None:
    """Compared with the sum over all points with weights 0.9 ** age, divided by the sum of the weights."""
    values = [float((i * 37) % 11) for i in range(30)]
    draw(blank, "(ys) => chart.addSeries('a').set(ys.map((_, i) => i), ys)", values)
    draw(blank, "chart.addSeries('b', { smoothing: false }).set([0, 29], [1, 2])")
    draw(blank, "chart.set({ smoothing: 0.9 })")
    weights = [0.9**age for age in range(30)][::-1]
    mean = sum(w * y for w, y in zip(weights, values, strict=True)) / sum(weights)
    assert readout(blank) == f"step 29 · a {mean:.4g} (raw {values[-1]:g}) · b 2"
    draw(blank, "chart.series[0].append(30, 100)")  # smoothing goes on from where it was
    more = (0.9 * mean * sum(weights) + 100) / (0.9 * sum(weights) + 1)
    assert f"a {more:.4g} (raw 100)" in readout(blank)
    draw(blank, "chart.set({ smoothing: 0 })")
    assert "a 100 · b 2 at 29" in readout(blank)


@pytest.mark.parametrize("log", [False, True])
def test_a_constant_stays_one_when_it_is_smoothed(blank: Page, log: bool) -> None:
    """The axis does not magnify the last bits of an average."""
    script = """(log) => {
      chart.set({ smoothing: 0.6, yLog: log });
      chart.addSeries("a").append(Array.from({ length: 400 }, (_, i) => i), Array(400).fill(32.1));
    }"""
    draw(blank, script, log)
    low, high = blank.evaluate("chart.ranges.y")
    assert low < 17
    assert high > 48


def test_a_rollback_and_an_append_that_steps_back(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([1, 2, 3, 4], [4, 3, 2, 1])")
    refused = blank.evaluate("""() => {
      try { chart.series[0].append([5, 3], [0, 0]); } catch (error) { return `${error}`; }
    }""")
    assert refused == "RangeError: x 3 cannot follow 5"
    assert readout(blank) == "step 4 · a 1"
    draw(blank, "() => { chart.series[0].set([1, 2], [4, 3]); chart.series[0].append(3, 2.5); }")
    assert readout(blank) == "step 3 · a 2.5"
    for call in ("append(NaN, 1)", "append([9], [1, 2])", "append(Infinity, 1)", "append('9', '1')"):
        assert blank.evaluate(f"() => {{ try {{ chart.series[0].{call}; return false; }} catch {{ return true; }} }}")
    draw(blank, "() => chart.series[0].append([4, 5, 6], [1e308, -1e308, 7])")  # whose difference is infinite
    assert readout(blank) == "step 6 · a 7"


def test_it_draws_once_a_frame(blank: Page) -> None:
    drawn = draw(
        blank,
        """async () => {
      const series = chart.addSeries("a");
      const draw = chart.draw.bind(chart);
      let times = 0;
      chart.draw = () => { times += 1; draw(); };
      for (let i = 0; i < 1000; i += 1) series.append(i, i);
      await new Promise(requestAnimationFrame);
      await new Promise(requestAnimationFrame);
      return times;
    }""",
    )
    assert drawn == 1
    assert readout(blank) == "step 999 · a 999"


def test_the_keyboard_reads_and_zooms(blank: Page) -> None:
    draw(blank, "(xs) => chart.addSeries('a').set(xs, xs)", [*range(101)])
    draw(blank, "chart.addSeries('b').set([0, 50, 99.5], [7, 8, 9])")
    draw(blank, "chart.setMarks([{ x: 50, label: 'rolled back' }])")
    area = blank.get_by_role("application", name="Loss by step")
    area.focus()
    for key, text in (
        ("Home", "step 0 · a 0 · b 7"),
        ("ArrowLeft", "step 0 · a 0 · b 7"),
        ("ArrowRight", "step 1 · a 1 · b 7 at 0"),
        ("End", "step 100 · a 100 · b 9 at 99.5"),
        ("ArrowLeft", "step 99.5 · a 99 at 99 · b 9"),
        ("ArrowLeft", "step 99 · a 99 · b 8 at 50"),
        ("PageDown", "step 89 · a 89 · b 8 at 50"),
        ("PageUp", "step 99 · a 99 · b 8 at 50"),
    ):
        area.press(key)
        assert readout(blank) == text, key
    assert blank.locator(".chart-readout").get_attribute("aria-live") == "polite"
    for _ in range(5):
        area.press("PageDown")
    area.press("ArrowRight")
    assert readout(blank) == "step 50 · a 50 · b 8 · rolled back"
    area.press("+")
    draw(blank, "0")
    area.press("Home")
    assert readout(blank) == "step 25 · a 25 · b 7 at 0"
    area.press("-")
    draw(blank, "0")
    area.press("End")
    assert readout(blank).startswith("step 100 ")
    area.press("Escape")
    draw(blank, "0")
    area.press("Home")
    assert readout(blank) == "step 0 · a 0 · b 7"
    area.press("Tab")
    expect(area).not_to_be_focused()


def test_the_mouse_reads_and_zooms(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([0, 10, 20, 30, 40], [0, 1, 2, 3, 4])")
    area = blank.locator(".chart-area")
    left, right = edges(blank)
    box = area.bounding_box()
    assert box is not None

    def to(share: float) -> None:
        blank.mouse.move(box["x"] + left + (right - left) * share, box["y"] + 80)

    to(0.26)
    assert readout(blank) == "step 10 · a 1"
    assert blank.locator(".chart-readout").get_attribute("aria-live") == "off"
    blank.mouse.down()
    to(0.74)
    blank.mouse.up()
    draw(blank, "0")
    to(0.0)
    assert readout(blank) == "step 20 · a 2"  # the only point from 0.26 to 0.74 of the range
    area.dblclick(position={"x": (left + right) / 2, "y": 80})
    draw(blank, "0")
    to(0.0)
    assert readout(blank) == "step 0 · a 0"
    blank.mouse.move(0, 0)
    assert readout(blank) == "step 40 · a 4"


def test_names_are_text(blank: Page) -> None:
    blank.evaluate("() => { globalThis.alert = () => { globalThis.ran = true; }; }")
    draw(blank, "(name) => chart.addSeries(name).set([1, 2], [1, 2])", HOSTILE)
    draw(blank, "(name) => chart.addSeries(name + 'x'.repeat(5000)).set([1, 2], [2, 1])", HOSTILE)
    draw(blank, "(name) => chart.setMarks([{ x: 2, label: name }])", HOSTILE)
    button = blank.locator(".chart-legend button").first
    expect(button).to_have_text("U+202E<img src=x onerror=alert(1)>␀</script>")
    assert blank.locator(".chart img, .chart script").count() == 0
    assert not blank.evaluate("globalThis.ran ?? false")
    blank.get_by_text("Values as a table").click()
    expect(blank.locator(".chart-table td").first).to_be_visible()
    check_layout(blank)
    check_accessibility(blank)


def test_a_series_can_be_hidden(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([1, 2], [1, 2])")
    assert blank.locator(".chart-legend button").count() == 0  # there is nothing to tell apart
    draw(blank, "chart.addSeries('b').set([1, 2], [100, 200])")
    button = blank.get_by_role("button", name="b", exact=True)
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "false")
    draw(blank, "0")
    assert readout(blank) == "step 2 · a 2"
    assert blank.evaluate("chart.ranges.y[1]") < 3


def test_looks_differ_without_color(blank: Page) -> None:
    draw(blank, "() => { for (let i = 0; i < 5; i += 1) chart.addSeries(`run ${i}`).set([1, 2], [i, i]); }")
    lines = blank.locator(".chart-legend line")
    dashes = [lines.nth(i).get_attribute("stroke-dasharray") for i in range(5)]
    assert len(set(dashes)) == 5


def test_the_values_are_a_table_too(blank: Page) -> None:
    draw(blank, "(xs) => chart.addSeries('a').set(xs, xs.map((x) => x * x))", [*range(1000)])
    draw(blank, "chart.addSeries('b').set([10, 999], [5, 6])")
    blank.get_by_text("Values as a table").press("Enter")
    rows = blank.locator(".chart-table tbody tr")
    expect(rows).to_have_count(40)
    assert rows.first.inner_text().split("\t") == ["0", "0", ""]
    assert rows.last.inner_text().split("\t") == ["999", "998,001", "6"]
    draw(blank, "chart.series[0].append(1000, 1)")
    expect(rows.last).to_have_text("1,00016")


def test_it_follows_size_and_color_scheme(blank: Page) -> None:
    draw(blank, "chart.addSeries('a').set([1, 2], [1, 2])")
    colors = []
    for scheme in ("light", "dark"):
        blank.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        draw(blank, "0")
        left, right = edges(blank)
        assert blank.evaluate(ROWS, [(left + right) / 2])[0]
        colors.append(blank.evaluate("chart.color('--series-1')"))
    assert colors[0] != colors[1]
    blank.set_viewport_size({"width": 360, "height": 800})
    draw(blank, "0")
    assert blank.evaluate("chart.plot.right") < 360
    check_layout(blank)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (1, "1"), (-3, "-3"), (2.34567, "2.346"), (12400, "12,400"), (123456.78, "123,457"), (0.25, "0.25"),
        (0.0003, "3e-4"), (0.00012345, "1.234e-4"), (6.043e-10, "6.043e-10"), (1.5e9, "1.5e9"), (None, "–"),
    ],
)  # fmt: skip
def test_numbers_for_people(blank: Page, value: float | None, shown: str) -> None:
    script = "async (value) => (await import('/assets/chart_scale.js')).formatNumber(value)"
    assert blank.evaluate(script, value) == shown


@pytest.mark.parametrize(
    ("log", "values", "ticks"),
    [
        (False, [0, 10], [0, 2, 4, 6, 8, 10]),
        (False, [0.1, 0.35], [0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        (False, [-1e-5, 1e-5], [-1e-5, -5e-6, 0, 5e-6, 1e-5]),
        (True, [1, 1e6], [1, 10, 100, 1000, 1e4, 1e5, 1e6]),
        (True, [1e-12, 1e12], [1e-12, 1e-8, 1e-4, 1, 1e4, 1e8, 1e12]),
        (True, [1, 60], [1, 2, 5, 10, 20, 50]),
        (True, [3e-5, 3e-2], [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]),
        (True, [2.1, 2.6], [2.1, 2.2, 2.3, 2.4, 2.5, 2.6]),
    ],
)
def test_ticks_are_round(blank: Page, log: bool, values: list[float], ticks: list[float]) -> None:
    script = """async ([log, values]) =>
      (await import("/assets/chart_scale.js")).makeScale(log, values, [0, 100]).ticks(7)"""
    assert blank.evaluate(script, [log, values]) == pytest.approx(ticks)
