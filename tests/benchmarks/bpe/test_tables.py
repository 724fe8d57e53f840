from pathlib import Path

from benchmarks.bpe.jobs import Measurement
from benchmarks.bpe.tables import tables, verdict_table, write
from benchmarks.report import Verdict


def test_learning_is_told_with_ratios():
    results = {
        "training 10000": {
            "ownlm": Measurement({"first": 2.0, "again": 1.0}, num_bytes=10**8, peak=5 * 10**8, common=1.0),
            "gigabpe": Measurement({"first": 1.0, "again": 1.0}, num_bytes=10**8, peak=2 * 10**8, common=0.981),
            "bpeasy": Measurement({"first": 5.0}, num_bytes=10**7, peak=10**8, common=0.99),
            "rustbpe": Measurement(failure="it crashed"),
        }
    }
    (table,) = tables(results)
    lines = table.splitlines()
    assert lines[0] == "### Learning 10,000 tokens, 100 MB"
    assert lines[2].endswith("*: of a part of the text.")
    assert lines[-4:] == [
        "| gigabpe | 1.00 | 100.0 | 0.50 | 1.00 | 1.00 | 200 | 98.1% |",
        "| **ownlm** | 2.00 | 50.0 | 1.00 | 1.00 | 1.00 | 500 | 100.0% |",
        "| bpeasy* | 5.00 | 2.0 | 25.00 | – | 50.00 | 100 | 99.0% |",
        "| rustbpe | – | – | – | – | – | – | it crashed |",
    ]


def test_encoding_is_told_with_what_differs():
    results = {
        "documents": {
            "ownlm": Measurement({"first": 1.0, "again": 0.5}, num_bytes=10**8, equal=True),
            "tokie": Measurement({"first": 2.0, "again": 2.0}, num_bytes=10**8, equal=False),
            "tokenizers": Measurement({"first": 10.0}, num_bytes=2 * 10**7, equal=True),
        }
    }
    (table,) = tables(results)
    assert table.splitlines()[-3:] == [
        "| **ownlm** | 100 | 200 | equal |",
        "| tokie | 50 (2.00) | 50 (4.00) | differ |",
        "| tokenizers | 2 (50.00)* | – | equal |",
    ]


def test_targets_that_are_missed_stand_out():
    table = verdict_table([Verdict("twice", "1.50 times", met=False), Verdict("once", "1.50", met=True)])
    assert table.splitlines()[-2:] == ["| twice | 1.50 times | **no** |", "| once | 1.50 | yes |"]


def test_tables_take_the_place_of_older_ones(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text("# Before\n")
    write(path, "first")
    path.write_text(path.read_text() + "\n## After\n")
    write(path, "second")
    text = path.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("\n## After\n")
    assert "second" in text
    assert "first" not in text
