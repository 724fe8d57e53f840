"""The list of cases and the tests that are marked with them agree."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_MARK = re.compile(r"\.case\(([^)]*)\)")


def test_each_case_has_a_test_and_each_mark_is_in_the_list() -> None:
    listed = set(re.findall(r"^\| (D\d\d) \|", (TESTS / "cases.md").read_text(encoding="utf-8"), re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    marked = {case for source in sources for mark in _MARK.findall(source) for case in re.findall(r'"(\w+)"', mark)}
    assert len(listed) == 59
    assert marked == listed
