"""What left a corpus and why, as JSON and as a page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.system.files import to_json_bytes, write_bytes
from trainer.cleaning.duplicates import DUPLICATE, NEAR_DUPLICATE, STAYS, Verdicts
from trainer.cleaning.examination import Examined
from trainer.errors import UsageError
from trainer.settings.clean import CleanSettings
from trainer.settings.fields import names_affecting
from trainer.storage.remote import display_path, local_path, url_of

_STYLE = """body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #8884;text-align:right}
td:first-child,th:first-child{text-align:left}.pair{display:grid;grid-template-columns:1fr 1fr;gap:1rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #8884;padding:.5rem}"""


@dataclass
class Count:
    """Documents, and the bytes of their text."""

    documents: int = 0
    bytes: int = 0

    def add(self, sizes: NDArray[np.uint64]) -> None:
        """Count documents of these sizes."""
        self.documents += len(sizes)
        self.bytes += int(sizes.sum())


@dataclass
class Counts:
    """What was read, what stays, and what left, by the reason."""

    read: Count = field(default_factory=Count)
    kept: Count = field(default_factory=Count)
    left: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A near-duplicate that left, and the earlier document that it resembles: where they are and how they begin."""

    place: str
    text: str
    earlier_place: str
    earlier_text: str
    similarity: float


@dataclass(frozen=True)
class CleaningReport:
    """What came of cleaning."""

    paths: Sequence[Path]
    settings: CleanSettings
    counts: Counts
    examples: Sequence[Example]

    def rows(self) -> list[tuple[str, Count]]:
        """What is shown, in order: what was read, what left by the reason, the most first, and what stays."""
        left = sorted(self.counts.left.items(), key=lambda item: (-item[1].documents, item[0]))
        return [("read", self.counts.read), *left, ("kept", self.counts.kept)]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "inputs": [display_path(path) for path in self.paths],
            "settings": {
                name: getattr(self.settings, name) for name in sorted(names_affecting(CleanSettings, "result"))
            },
            **asdict(self.counts),
            "near_duplicates": [asdict(example) for example in self.examples],
        }

    def to_html(self) -> str:
        """A page that needs no network."""
        total = self.counts.read
        rows = "".join(
            f"<tr><td>{escape(name)}<td>{count.documents:,}<td>{count.documents / max(1, total.documents):.1%}"
            f"<td>{count.bytes:,}<td>{count.bytes / max(1, total.bytes):.1%}"
            for name, count in self.rows()
        )
        pairs = "".join(
            f"<h3>{example.similarity:.2f}</h3><div class=pair>"
            f"<div>left: {escape(example.place)}<pre>{escape(example.text)}</pre></div>"
            f"<div>earlier: {escape(example.earlier_place)}<pre>{escape(example.earlier_text)}</pre></div></div>"
            for example in self.examples
        )
        heading = "<h2>Near-duplicates</h2><p>The first ones, with the estimated similarity." if pairs else ""
        inputs = ", ".join(escape(display_path(path)) for path in self.paths)
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Cleaning</title><style>{_STYLE}</style>"
            f"<h1>Cleaning</h1><p>{inputs}<table><tr><th><th>documents<th><th>bytes<th>{rows}</table>"
            f"{heading}{pairs}</html>\n"
        )


def check_report(path: Path) -> None:
    """Raise a UsageError unless a report's name says what it is."""
    if path.suffix not in {".html", ".json"} or path.is_dir() or url_of(path) is not None:
        raise UsageError(f"--report {display_path(path)}: name a file of this machine that ends in .html or .json")


def write_report(report: CleaningReport, path: Path) -> None:
    """Write a report as its name says; in HTML, names of files that are not UTF-8 have a ? in place of such bytes."""
    content = report.to_html().encode(errors="replace") if path.suffix == ".html" else to_json_bytes(report.to_json())
    write_bytes(local_path(path), content)


def count_reasons(parts: Sequence[Examined], verdicts: Verdicts) -> Counts:
    """What was read, what stays, and what left."""
    counts = Counts()
    first = 0
    for part in parts:
        sizes, reasons = np.asarray(part.sizes()), np.asarray(part.reasons())
        state = verdicts.state[first : first + len(part)]
        first += len(part)
        counts.read.add(sizes)
        counts.kept.add(sizes[state == STAYS])
        chosen = {name: reasons == number for number, name in enumerate(part.header["reasons"], start=1)}
        chosen |= {"duplicate": state == DUPLICATE, "near-duplicate": state == NEAR_DUPLICATE}
        for name, which in chosen.items():
            if which.any():
                counts.left.setdefault(name, Count()).add(sizes[which])
    return counts
