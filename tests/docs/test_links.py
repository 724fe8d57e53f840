"""Links in the documentation, and those to it, lead somewhere; pages stay short."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LARGEST_PICTURE = 300_000  # bytes
_LONG = {DOCS / "reference" / "cli.md", DOCS / "lab" / "benchmarks.md"}  # generated, in whole or in part


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page(page: Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_the_index_names_every_page() -> None:
    linked = {(DOCS / link).resolve() for link in _LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}
    assert {*DOCS.rglob("*.md")} - {DOCS / "README.md"} == linked


def test_pictures_are_small_and_shown() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages()]
    for picture in sorted((DOCS / "images").iterdir()):
        assert picture.stat().st_size < LARGEST_PICTURE, picture
        assert any(f"images/{picture.name})" in text for text in texts), picture


def test_pages_that_the_tree_names_exist() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for name in files:
        path = ROOT / name
        if name in ("CHANGELOG.md", "docs/lab/log.md") or not path.is_file() or path.suffix == ".bin":
            continue
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", path.read_text(encoding="utf-8", errors="replace")):
            assert (ROOT / page).is_file(), f"{name}: {page}"


@pytest.mark.parametrize("page", sorted({*DOCS.rglob("*.md")} - _LONG), ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    if page != DOCS / "lab" / "log.md":
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 180
