"""The file of a report: what it shows, and that nothing in it comes from elsewhere, or is run but its own script."""

import base64
import hashlib
import json
import platform
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import UsageError
from trainer.report.build import build_report
from trainer.report.comparison import cautions, differing_settings, ranking, varied_number
from trainer.report.figures import FigureFiles
from trainer.report.selection import read_runs

pytestmark = pytest.mark.extended

EVIL = "<script>alert('$x_1$')</script>"


class Elements(HTMLParser):
    """Tags, attributes and texts of a page, and what its script shows.

    Attributes:
        data: The content of its element `data`.
        shown: All texts of the sections, each on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.data: dict[str, Any] = json.loads(self.scripts[0])
        self.sections: dict[str, Any] = self.data["sections"]
        self.shown = "\n".join(texts(self.sections))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        self.text += data


def texts(content: Any) -> Iterator[str]:
    """All texts in a JSON value, without the pictures."""
    if isinstance(content, dict | list):
        for item in content.values() if isinstance(content, dict) else content:
            yield from texts(item)
    elif isinstance(content, str) and not content.startswith("data:"):
        yield content


def row(page: Elements, name: str) -> dict[str, Any]:
    """The row of a run in the comparison, its cells by heading."""
    comparison = page.sections["comparison"]
    (found,) = (each for each in comparison["rows"] if each["name"] == name)
    return found | dict(zip(comparison["headings"], found["cells"], strict=True))


def make_run(folder: Path, *, end: float, steps: int = 40, finished: bool = True, **more: Any) -> Path:
    """A run folder as the trainer leaves it, without its models."""
    settings = {"learning_rate": 1e-3, "max_steps": 40, "data": "none"} | more.pop("settings", {})
    data = {"fingerprint": more.pop("fingerprint", "a"), "validation": {"sha256": "x"}}
    records: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        common = {"step": step, "tokens": 64 * step, "seconds": 2.0 * step}
        loss = end + 4 / step
        records.append(common | {"loss": loss, "learning_rate": 1e-3, "grad_norm": 1.0, "tokens_per_second": 32.0})
        if step % 10 == 0:
            records.append(common | {"validation_loss": loss + 0.1, "bits_per_byte": loss / 3})
    records += more.pop("records", [])
    records = [{key: None if value != value else value for key, value in record.items()} for record in records]
    folder.mkdir(parents=True)
    (folder / "train.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run.json").write_text(json.dumps({"parameters": 1_234_567, "data": data, "starts": []}))
    if finished:
        (folder / "model").mkdir()
        (folder / "model" / "ownlm.json").touch()
    assert not more
    return folder


def write_outcomes(sweep: Path, changes: dict[str, dict[str, Any]], *, baseline: str = "", notes: Any = ()) -> None:
    """A `sweep.json` of these runs."""
    outcome = dict.fromkeys(("reason", "loss", "validation_loss", "best_validation_loss", "bits_per_byte", "tokens"))
    outcome |= {"status": "finished", "step": 40, "tokens_per_second": None, "seconds": None}
    runs = [outcome | {"name": name, "changes": own, "baseline": name == baseline} for name, own in changes.items()]
    (sweep / "sweep.json").write_text(json.dumps({"notes": notes, "runs": runs}))


def report(tmp_path: Path, *runs: Path) -> Elements:
    page = tmp_path / "out" / "page.html"
    build_report(runs, page, files=FigureFiles(page.with_suffix("")), prompt=None, models=False, device="cpu")
    return Elements(page)


def test_everything_of_several_runs_is_there(tmp_path: Path) -> None:
    make_run(tmp_path / "s" / "fast", end=2.0, settings={"learning_rate": 3e-3})
    make_run(tmp_path / "s" / "slow", end=3.0)
    make_run(tmp_path / "s" / "killed", end=2.5, steps=15, finished=False, settings={"learning_rate": 2e-3})
    page = report(tmp_path, tmp_path / "s")
    assert page.sections["about"]["title"] == "fast, killed, slow"
    assert [each["name"] for each in page.sections["comparison"]["rows"] if each["is_best"]] == ["fast"]
    fast = row(page, "fast")
    expected = {"learning_rate": "0.003", "parameters": "1.23M", "validation loss": "2.2000", "time": "0:01:20"}
    assert {key: fast[key] for key in expected} == expected
    assert (fast["tokens/s"], row(page, "killed")["state"]) == ("32", "step 15 of 40")
    names = {"loss-by-step", "loss-by-time", "loss-by-tokens", "learning-rate", "gradient-norm", "throughput"}
    names.add("final-loss-by-learning_rate")
    files = {path.stem: path for path in (tmp_path / "out" / "page").iterdir()}
    assert set(files) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files.values())
    assert [each["title"] for each in page.sections["pictures"]] == ["Final loss by learning_rate"]
    loss = page.data["points"]["1"]["loss"]
    assert (loss["from"], loss["steps"]) == (0, list(range(1, 16)))
    assert loss["values"][14] == pytest.approx(2.5 + 4 / 15, rel=1e-6)
    assert set(page.data["points"]["0"]) == {
        *("loss", "validation_loss", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second"),
        *("tokens", "seconds"),
    }


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(tmp_path: Path) -> None:
    """Names, samples and events are anybody's text."""
    records = [{"step": 5, "sample": f"Once {EVIL}"}, {"step": 6, "event": f"skipped {EVIL}"}]
    folder = make_run(tmp_path / EVIL.replace("/", "|"), end=2.0, records=records, settings={"note": EVIL})
    page = report(tmp_path, folder)
    check_harmless(page)
    assert f"Once {EVIL}" in page.shown
    assert f"skipped {EVIL}" in page.shown
    assert "<script>alert" not in page.html


def check_harmless(page: Elements) -> None:
    """All elements are the page's own, and of its scripts the policy allows one: the second, after the data."""
    assert {"img", "link", "iframe", "object"}.isdisjoint(page.tags)
    assert [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")] == []
    assert len(page.scripts) == page.tags.count("script") == 2
    assert "<" not in page.scripts[0]
    (policy,) = (value for name, value in page.attributes if name == "content" and value and "default-src" in value)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert "default-src 'none'; script-src 'sha256-" + digest + "'; style-src 'sha256-" in policy
    assert re.search(r"unsafe|http|\*|'self'", policy) is None


def test_odd_runs_do_not_stop_it(tmp_path: Path) -> None:
    """One that never began, one that became NaN at once, a single one, one whose files are damaged."""
    (tmp_path / "s" / "empty").mkdir(parents=True)
    (tmp_path / "s" / "empty" / "train.toml").write_text("max_steps = 5\n")
    make_run(tmp_path / "s" / "nan", end=float("nan"), finished=False)
    page = report(tmp_path, tmp_path / "s")
    assert row(page, "empty")["state"] == "no step yet"
    assert row(page, "nan")["state"] == "diverged, step 40 of 40"
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "metrics.jsonl").write_bytes(b"\x00\n{}\n")
    (damaged / "train.toml").write_bytes(b"\xff = ")
    assert row(report(tmp_path, damaged), "damaged")["state"] == "no step yet"
    alone = report(tmp_path, make_run(tmp_path / "alone", end=2.0))
    assert not row(alone, "alone")["is_best"]


def test_the_best_is_by_bits_where_vocabularies_differ(tmp_path: Path) -> None:
    small = make_run(tmp_path / "small", end=2.0, fingerprint="a")
    large = make_run(tmp_path / "large", end=3.0, fingerprint="b")
    metrics = (large / "metrics.jsonl").read_text().replace('"bits_per_byte": 1', '"bits_per_byte": 0')
    (large / "metrics.jsonl").write_text(metrics)
    runs = read_runs([small, large])
    assert [run.name for run in ranking(runs)] == ["large", "small"]
    assert "different vocabularies" in cautions(runs)[0]
    same = read_runs([small, make_run(tmp_path / "other", end=3.0)])
    assert [run.name for run in ranking(same)] == ["small", "other"]
    assert cautions(same) == []


def test_a_diverged_run_is_never_the_best(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", end=5.0)
    bad = make_run(tmp_path / "bad", end=1.0, finished=False, records=[{"step": 41, "loss": None}])
    assert [run.name for run in ranking(read_runs([bad, good]))] == ["good", "bad"]


def test_settings_that_differ(tmp_path: Path) -> None:
    """What a sweep varied comes first; what only changes the view does not count."""
    for name, rate, interval in (("a", 1e-3, 5), ("b", 2e-3, 10)):
        make_run(tmp_path / "s" / name, end=2.0, settings={"learning_rate": rate, "eval_interval": interval})
    runs = read_runs([tmp_path / "s"])
    assert differing_settings(runs) == ["learning_rate"]
    assert varied_number(runs) == "learning_rate"
    write_outcomes(tmp_path / "s", {"a": {"vocab_size": 300}, "b": {"vocab_size": 400}})
    assert differing_settings(read_runs([tmp_path / "s"])) == ["vocab_size", "learning_rate"]
    assert varied_number(read_runs([tmp_path / "s"])) == "vocab_size"


def test_runs_are_found_named_and_ordered(tmp_path: Path) -> None:
    for name in ("one/rate=1e-3", "one/rate=0.01", "one/rate=2e-4", "two/rate=0.01"):
        make_run(tmp_path / name, end=2.0)
    names = [run.name for run in read_runs([tmp_path / "one", tmp_path / "two", tmp_path / "one" / "rate=1e-3"])]
    assert names == ["rate=2e-4", "rate=1e-3", "one/rate=0.01", "two/rate=0.01"]
    with pytest.raises(UsageError, match="is not a folder"):
        read_runs([tmp_path / "none"])
    with pytest.raises(UsageError, match="contains none"):
        read_runs([tmp_path])


def test_thirty_runs_have_thirty_colors(tmp_path: Path) -> None:
    from trainer.report.colors import colors_of

    runs = [make_run(tmp_path / "s" / str(number), end=2.0, steps=3) for number in range(30)]
    assert len(set(colors_of(read_runs(runs)))) == 30


@pytest.mark.parametrize(
    ("how", "has_model", "expected"),
    [
        ("finished", True, "finished"),
        ("finished", False, "finished"),
        ("stopped", True, "stopped, step 20 of 40"),
        ("failed", False, "failed, step 20 of 40"),
        ("no such word", True, "finished"),
        (None, True, "killed, step 20 of 40"),
    ],
)
def test_the_state_of_a_run(tmp_path: Path, how: str | None, has_model: bool, expected: str) -> None:
    """Also of one that finished, was resumed for more steps, and ended before these: its model is that of before."""
    run = make_run(tmp_path / "run", end=2.0, steps=20, finished=has_model)
    end = how and {"time": "2026-01-01T01:00:00+00:00", "step": 20, "how": how, "reason": "the disk is full"}
    start = {"time": "2026-01-01T00:00:00+00:00", "step": 0, "command": "train", "git": None, "versions": {"a": "1"}}
    start |= {"machine": {"name": platform.node(), "cpu": "b", "cpus": 2}, "device": "cpu", "processes": 1, "end": end}
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    page = report(tmp_path, run)
    assert row(page, "run")["state"] == expected
    made = page.sections["made"][0]["starts"][0]["text"]
    assert made.endswith(f"It {how} at step 20, 2026-01-01T01:00:00+00:00: the disk is full" if how else "a 1")
