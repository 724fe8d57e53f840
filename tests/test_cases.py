"""The lists of cases and the tests that name them agree."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_MARK = re.compile(r"\.case\(([^)]*)\)")
LIST = (TESTS / "cases.md").read_text(encoding="utf-8")
SOURCES = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")]


def listed(kind: str) -> set[str]:
    return set(re.findall(rf"^\| ({kind}\d\d) \|", LIST, re.MULTILINE))


def test_each_case_has_a_test_and_each_mark_is_in_the_list() -> None:
    marked = {case for source in SOURCES for mark in _MARK.findall(source) for case in re.findall(r'"(\w+)"', mark)}
    assert len(listed("D")) == 59
    assert marked == listed("D")


def test_each_public_case_that_a_test_names_is_in_the_list() -> None:
    assert {case for source in SOURCES for case in re.findall(r"\bB\d\d\b", source)} == listed("B") != set()
