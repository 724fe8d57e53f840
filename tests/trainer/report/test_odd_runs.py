"""Run folders whose files were edited, damaged or made elsewhere: shown as text, noted, never the end of a report."""

import base64
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.report.test_page import Elements, check_harmless, make_run
from trainer.report.build import build_report
from trainer.report.figures import FigureFiles
from trainer.report.models import examine
from trainer.report.selection import read_runs

EVIL = 'x"><meta http-equiv=refresh content=0;url=https:evil.example><svg onload=alert(1)><b y="'
OURS = {"html", "head", "meta", "title", "style", "body", "header", "main", "section", "h1", "h2", "p", "div"}
OURS |= {"noscript", "script"}
SVG = {"svg", "metadata", "rdf:rdf", "cc:work", "dc:type", "dc:format", "defs", "g", "path", "use", "text", "clippath"}
SVG |= {"rect", "tspan", "marker", "style"}


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a report's time goes into PNG files."""
    save = matplotlib.figure.Figure.savefig

    def save_svg_only(figure: Any, target: Any, **options: Any) -> None:
        if options["format"] == "svg":
            save(figure, target, **options)
        else:
            target.touch()

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save_svg_only)


def outcome(name: Any, changes: Any, *, baseline: Any = None) -> dict[str, Any]:
    nothing = dict.fromkeys(("reason", "loss", "validation_loss", "best_validation_loss", "bits_per_byte", "tokens"))
    more = {"status": "finished", "step": 40, "tokens_per_second": None, "seconds": None}
    return nothing | more | {"name": name, "changes": changes, "baseline": baseline}


def report(folder: Path) -> Elements:
    """The page about the runs in `folder`, in which every element is the report's own."""
    page = folder.parent / "page.html"
    files = FigureFiles(page.with_suffix(""))
    build_report([folder], page, files=files, prompt=None, models=False, device="cpu")
    elements = Elements(page)
    assert set(elements.tags) <= OURS
    assert elements.tags.count("meta") == 3
    check_harmless(elements)
    for each in elements.sections["pictures"]:
        picture = picture_of(each["source"])
        assert set(picture.tags) <= SVG
        assert not [name for name, _ in picture.attributes if name.startswith("on")]
        links = [value for name, value in picture.attributes if name in ("href", "xlink:href", "src")]
        assert all(value is not None and value.startswith("#") for value in links)
    for picture in (folder.parent / "page").iterdir():
        assert re.fullmatch(r"[\w.=,+-]{1,80}\.png", picture.name)
    return elements


class Picture(HTMLParser):
    """Tags and attributes of an SVG."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def picture_of(source: str) -> Picture:
    kind, _, content = source.partition(",")
    assert kind == "data:image/svg+xml;base64"
    return Picture(base64.b64decode(content).decode())


ODD_KEYS = [EVIL, "a/b", "../../x", r"a\1\g<0>", "k" * 400, "k\0\x1b[31m\nb", "$x_1$ %s {0} 世界", "_a"]


@pytest.mark.case("D48")
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("place", "key"), [("train.toml", EVIL), *(("sweep.json", key) for key in ODD_KEYS)])
def test_names_of_settings_are_text(tmp_path: Path, place: str, key: str) -> None:
    """In the table, in titles, in the figures' texts and attributes, in names of files."""
    for name, value in (("a", 1.0), ("b", 2.0)):
        run = make_run(tmp_path / "s" / name, end=2.0)
        if place == "train.toml":
            with (run / place).open("a") as file:
                file.write(f"{json.dumps(key)} = {value}\n")
    if place == "sweep.json":
        runs = [outcome(name, {key: value}) for name, value in (("a", 1.0), ("b", 2.0))]
        (tmp_path / "s" / place).write_text(json.dumps({"runs": runs}))
    page = report(tmp_path / "s")
    assert any(path.name.startswith("final-loss-by-") for path in (tmp_path / "page").iterdir())
    assert key in page.sections["comparison"]["headings"]
    (picture,) = page.sections["pictures"]
    assert f"Final loss by {key}"[:40].split("\0")[0] in picture["title"]


@pytest.mark.case("D48")
def test_names_of_runs_and_texts_of_theirs_are_text(tmp_path: Path) -> None:
    evil = EVIL.replace("/", "|")
    records = [{"step": 5, "sample": EVIL}, {"step": 6, "event": EVIL}]
    make_run(tmp_path / "s" / evil, end=2.0, records=records, fingerprint=EVIL, settings={"note": EVIL, "seed": 1})
    make_run(tmp_path / "s" / os.fsdecode(b"no text \xff"), end=2.0, finished=False)
    start = {"step": 0, "command": EVIL, "git": {"revision": EVIL, "dirty": True}, "versions": {EVIL: EVIL}}
    start |= {"time": "2026-01-01T00:00:00+00:00", "device": EVIL, "processes": 2}
    start["machine"] = {"name": EVIL, "cpu": EVIL, "cpus": 1}
    (tmp_path / "s" / evil / "run.json").write_text(json.dumps({"starts": [start]}))
    page = report(tmp_path / "s")
    assert page.shown.count(evil) > 5
    assert page.shown.count(EVIL) >= 7


ODD = {
    "starts without anything": ("run.json", '{"starts": [{}]}', "run.json: starts"),
    "a list as fingerprint": ("run.json", '{"data": {"fingerprint": ["a"]}}', "run.json: data"),
    "a list as validation": ("run.json", '{"data": {"validation": [1]}}', "run.json: data"),
    "parameters of 400 digits": ("run.json", '{"parameters": %s}' % ("9" * 400), "run.json"),
    "parameters that are text": ("run.json", '{"parameters": "many"}', "run.json: parameters"),
    "a record that is too deep": ("run.json", "[" * 100_000, "run.json: is damaged"),
    "a lone surrogate": ("run.json", '{"starts": [{"command": "\\ud800"}]}', "run.json: starts"),
    "losses of 1e308": (
        "metrics.jsonl",
        '{"step": 50, "loss": 1e308, "seconds": 1e308}\n' * 30,
        "metrics.jsonl: 60 values",
    ),
    "a loss of 400 digits": ("metrics.jsonl", '{"step": 50, "loss": 1%s}\n' % ("0" * 30), None),
    "steps below 0": ("metrics.jsonl", '{"step": -5, "loss": 3}\n', "metrics.jsonl: 1 values"),
    "a step of 19 digits": ("metrics.jsonl", '{"step": 1000000000000000000, "loss": 3}\n', "metrics.jsonl: 1 values"),
    "a step that is true": ("metrics.jsonl", '{"step": true, "loss": 3}\n', "metrics.jsonl: 1 values"),
    "a table among settings": ("train.toml", "[learning_rate]\nx = 1\n", "train.toml: learning_rate"),
    "a rate of 400 digits": ("train.toml", f"learning_rate = {'9' * 400}\n", "train.toml: learning_rate"),
    "a rate that is no number": ("train.toml", "learning_rate = nan\n", "train.toml: learning_rate"),
    "settings that are too deep": ("train.toml", f"a = {'[' * 3000}{']' * 3000}", "train.toml: cannot be read"),
}


@pytest.mark.case("D49")
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("file", "content", "note"), ODD.values(), ids=list(ODD))
def test_one_odd_run_is_noted_and_the_others_are_shown(
    tmp_path: Path, file: str, content: str, note: str | None
) -> None:
    make_run(tmp_path / "s" / "good", end=2.0, settings={"learning_rate": 3e-3})
    odd = make_run(tmp_path / "s" / "odd", end=3.0)
    before = (odd / file).read_text() if file == "metrics.jsonl" else ""
    (odd / file).write_text(before + content)
    page = report(tmp_path / "s")
    assert "2.2000" in page.shown
    assert note is None or f"odd: {note}" in page.shown
    assert "good: " not in page.shown
    assert len(page.data["points"]["0"]) == 8


@pytest.mark.case("D49")
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"runs": [outcome("odd", [1]), outcome(["good"], {}), outcome("odd", None), 7]}),
        json.dumps({"runs": [outcome("good", {"x": 10**400, "y": [[1]]}), outcome("odd", {"x": 1})]}),
        json.dumps({"runs": {"odd": 1}}),
        "[" * 100_000,
        "",
    ],
)
def test_an_odd_sweep_is_noted(tmp_path: Path, content: str) -> None:
    for name in ("good", "odd"):
        make_run(tmp_path / "s" / name, end=2.0)
    (tmp_path / "s" / "sweep.json").write_text(content)
    assert "sweep.json: " in report(tmp_path / "s").shown


@pytest.mark.case("D49")
def test_settings_that_no_sample_can_be_drawn_with_are_noted(tmp_path: Path) -> None:
    """Even where the folders of its models are damaged."""
    odd = make_run(tmp_path / "odd", end=2.0, settings={"data": 5, "seed": -1, "sample_tokens": "many"})
    (odd / "model" / "config.json").write_text("[" * 100_000)
    (found,) = (examine(run, prompt=None, device="cpu") for run in read_runs([odd]))
    assert found.samples == []
    assert found.notes[0].startswith("step 40: ")


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308, -1e308, 1e100, 5e-324, 0, -0.0, True]),
)
TEXTS = st.one_of(st.text(), st.sampled_from([EVIL, "a/b", r"\1", "_", "\ud800", "\0", "step", "loss"]))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def near(example: Any) -> st.SearchStrategy[Any]:
    """What looks like the example, in which any part may be anything, or missing."""
    if isinstance(example, dict):
        parts = st.fixed_dictionaries({}, optional={key: near(value) for key, value in example.items()})
        own = st.tuples(parts, st.dictionaries(TEXTS, ANYTHING, max_size=1)).map(lambda both: both[0] | both[1])
        return st.one_of(own, own, own, ANYTHING)
    if isinstance(example, list):
        return st.one_of(st.lists(near(example[0]), max_size=4), ANYTHING)
    return st.one_of(st.just(example), st.just(example), NUMBERS if isinstance(example, int | float) else ANYTHING)


START = {
    "time": "2026-01-01T00:00:00",
    "step": 0,
    "command": "x",
    "git": None,
    "versions": {"torch": "2"},
    "device": "cpu",
}
START |= {"processes": 1, "machine": {"name": "a", "cpu": "b", "cpus": 2}}
RECORD = {"parameters": 5, "data": {"fingerprint": "a", "validation": {"sha256": "b"}}, "starts": [START]}
METRIC = {"step": 3, "loss": 2.0, "validation_loss": 2.0, "bits_per_byte": 1.0, "learning_rate": 1e-3, "grad_norm": 1.0}
METRIC |= {"tokens": 10, "seconds": 1.0, "tokens_per_second": 5.0, "sample": "Once", "event": "stopped"}
TOML = st.dictionaries(
    st.one_of(TEXTS, st.sampled_from(["max_steps", "learning_rate", "eval_tokens"])), ANYTHING, max_size=4
)
FILES = st.fixed_dictionaries(
    {
        "run.json": near(RECORD).map(json.dumps),
        "metrics.jsonl": st.lists(near(METRIC), max_size=8).map(lambda rows: "\n".join(map(json.dumps, rows)) + "\n"),
        "train.toml": st.one_of(
            TOML.map(lambda t: "\n".join(f"{json.dumps(k)} = {json.dumps(t[k])}" for k in t)), TEXTS
        ),
        "../sweep.json": near(
            {
                "notes": ["Baseline: ..."],
                "runs": [outcome("odd", {"learning_rate": 1e-3}), outcome("good", {}, baseline=True)],
            }
        ).map(json.dumps),
    }
)


def check_any_run(folder: Path, files: dict[str, str]) -> None:
    make_run(folder / "s" / "good", end=2.0)
    odd = folder / "s" / "odd"
    odd.mkdir()
    for name, content in files.items():
        (odd / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    page = report(folder / "s")
    assert "2.2000" in page.shown


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(number) for number in range(10**6))  # type: ignore[return-value]


@pytest.mark.case("D49")
@pytest.mark.usefixtures("no_pictures")
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(files=FILES)
def test_any_run_is_shown_beside_a_good_one(folders: Iterator[Path], files: dict[str, str]) -> None:
    check_any_run(next(folders), files)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a busy machine
@pytest.mark.case("D49")
@pytest.mark.usefixtures("no_pictures")
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(files=FILES)
def test_many_runs_of_any_kind_are_shown_beside_a_good_one(folders: Iterator[Path], files: dict[str, str]) -> None:
    check_any_run(next(folders), files)
