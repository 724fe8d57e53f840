"""The page: what is in it, and that nothing in it comes from elsewhere or is run."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import UsageError
from trainer.report.build import build_report
from trainer.report.figures import FigureFiles
from trainer.report.comparison import cautions, differing_settings, ranking, varied_number
from trainer.report.selection import read_runs

EVIL = "<script>alert('$x_1$')</script>"


class Elements(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


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
    assert "fast ★ best" in " ".join(page.text.split())
    texts = ("fast, killed, slow", "1.23M", "2.2000", "learning_rate", "0.003", "step 15 of 40", "0:01:20", "32")
    for expected in texts:
        assert expected in page.text, expected
    names = {"loss-by-step", "loss-by-time", "loss-by-tokens", "learning-rate", "gradient-norm", "throughput"}
    names.add("final-loss-by-learning_rate")
    files = {path.stem: path for path in (tmp_path / "out" / "page").iterdir()}
    assert set(files) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files.values())
    assert page.tags.count("svg") == len(names)


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(tmp_path: Path) -> None:
    """Names, samples and events are anybody's text."""
    records = [{"step": 5, "sample": f"Once {EVIL}"}, {"step": 6, "event": f"skipped {EVIL}"}]
    folder = make_run(tmp_path / EVIL.replace("/", "|"), end=2.0, records=records, settings={"note": EVIL})
    page = report(tmp_path, folder)
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(page.tags)
    assert all(name not in ("src", "onload", "onclick", "onerror") for name, _ in page.attributes)
    links = {value for name, value in page.attributes if name in ("href", "xlink:href")}
    assert all(value is not None and value.startswith("#") for value in links)
    assert f"Once {EVIL}" in page.text
    assert f"skipped {EVIL}" in page.text


def test_odd_runs_do_not_stop_it(tmp_path: Path) -> None:
    """One that never began, one that became NaN at once, a single one, one whose files are damaged."""
    (tmp_path / "s" / "empty").mkdir(parents=True)
    (tmp_path / "s" / "empty" / "train.toml").write_text("max_steps = 5\n")
    make_run(tmp_path / "s" / "nan", end=float("nan"), finished=False)
    page = report(tmp_path, tmp_path / "s")
    assert "no step yet" in page.text
    assert "diverged, step 40 of 40" in page.text
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "metrics.jsonl").write_bytes(b"\x00\n{}\n")
    (damaged / "train.toml").write_bytes(b"\xff = ")
    assert "no step yet" in report(tmp_path, damaged).text
    alone = report(tmp_path, make_run(tmp_path / "alone", end=2.0))
    assert "★" not in alone.text


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
