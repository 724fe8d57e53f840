"""Results as tables in Markdown."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.bpe.jobs import OURS, Measurement, Results
from benchmarks.report import Verdict

_BEGIN, _END = "<!-- written by python -m benchmarks.bpe: do not edit -->", "<!-- end of what was written -->"
_MB = 1e6
_MISSING = "–"
_ENCODING = (
    ("documents, 1 thread, first pass", "documents", "first"),
    ("again", "documents", "again"),
    ("one 10 MB string, first", "string", "first"),
    ("again", "string", "again"),
    ("batch, 2 threads, first", "batch", "first"),
    ("again", "batch", "again"),
    ("stories, 1 thread, first", "stories", "first"),
)
_DECODING = (("10 million ids to bytes", "to_bytes"), ("to text", "to_text"), ("documents to texts", "batch"))
_RATIO = "In brackets: how many times as fast ours is."


def tables(results: Results) -> list[str]:
    """A table for each section that was measured."""
    made = [_training(name, measured) for name, measured in results.items() if name.startswith("training ")]
    made += [_encoding(results), _short(results), _files(results), _decoding(results), _start(results)]
    made.append(_scaling(results))
    return [table for table in made if table]


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """The targets, and whether they were met."""
    rows = [[v.target, v.measured, "yes" if v.met else "**no**"] for v in verdicts]
    return _table("Targets", "", ["target", "measured", "met"], rows)


def write(path: Path, text: str) -> None:
    """Put text into a Markdown file in place of what was put there before, or at its end."""
    old = path.read_text("utf-8") if path.exists() else ""
    before, begin, rest = old.partition(_BEGIN)
    after = rest.partition(_END)[2] if begin else "\n"
    path.write_text(f"{before}{_BEGIN}\n\n{text.strip()}\n\n{_END}{after}", "utf-8")


def _training(name: str, measured: dict[str, Measurement]) -> str:
    ours = measured[OURS]
    rows = []
    for package, one in _by_rate(measured, "first"):
        if one.failure:
            rows.append([package, *[_MISSING] * 6, one.failure])
            continue
        first, again = one.seconds["first"], one.seconds.get("again")
        mark = "*" if one.num_bytes < ours.num_bytes else ""
        again_rate = one.rate("first" if again is None else "again")
        rows.append([
            _bold(package) + mark,
            f"{first:.2f}", f"{one.rate('first') / _MB:.1f}", f"{ours.rate('first') / one.rate('first'):.2f}",
            _MISSING if again is None else f"{again:.2f}",
            f"{ours.rate('again') / again_rate:.2f}", f"{one.peak / _MB:,.0f}",
            _MISSING if one.common is None else f"{one.common:.1%}",
        ])  # fmt: skip
    size = f"{ours.num_bytes / _MB:.0f} MB"
    vocabulary = name.removeprefix("training ")
    of_stories = "10,000 tokens from the stories"
    title = f"Learning {of_stories if vocabulary == 'stories' else f'{int(vocabulary):,} tokens'}, {size}"
    head = [
        "package", "first call, s", "MB/s", "times ours", "second call, s", "times ours", "peak MB",
        "tokens in common with ours",
    ]  # fmt: skip
    note = (
        "The first call of a process, import included. Times ours: how many times as fast ours is, in MB/s; by the "
        "first call where there is no second one."
    )
    if any(one.num_bytes < ours.num_bytes for one in measured.values() if one.seconds):
        note += " *: of a part of the text."
    return _table(title, note, head, rows)


def _encoding(results: Results) -> str:
    columns = [column for column in _ENCODING if column[1] in results]
    if not columns:
        return ""
    rows, has_slices = [], False
    for package in _packages(results, [job for _, job, _ in columns]):
        cells = []
        for _, job, discipline in columns:
            one, ours = results[job].get(package, Measurement(failure="not run")), results[job][OURS]
            is_slice = bool(one.seconds) and one.num_bytes < ours.num_bytes
            has_slices |= is_slice
            cells.append(_rate_cell(one, ours, discipline) + ("*" if is_slice and discipline in one.seconds else ""))
        rows.append([_bold(package), *cells, _equality(results, package, [job for _, job, _ in columns])])
    note = f"MB/s. {_RATIO}" + (" *: of a part of the documents, 20 or 50 MB." if has_slices else "")
    return _table("Text to ids", note, ["package", *(title for title, _, _ in columns), "ids"], rows)


def _short(results: Results) -> str:
    measured = results.get("short", {})
    rows = [
        [_bold(package), f"{one.seconds['again'] * 1e6:.2f}", "equal" if one.equal else "differ"]
        for package, one in sorted(measured.items(), key=lambda item: item[1].seconds.get("again", 1))
        if one.seconds
    ]
    note = (
        "The same text again and again in one process, the best of five rounds of a thousand calls; as an array where "
        "a package gives one, else as a list."
    )
    return _table("A text of 200 bytes", note, ["package", "µs a call", "ids"], rows)


def _files(results: Results) -> str:
    jobs = [job for job in ("file 1", "file 2") if job in results]
    rows = []
    for package in _packages(results, jobs):
        cells = []
        for job in jobs:
            one = results[job][package]
            cells += [_rate_cell(one, results[job][OURS], "first"), f"{one.peak / _MB:,.0f}" if one.peak else _MISSING]
        rows.append([_bold(package), *cells, _equality(results, package, jobs)])
    head = [part for job in jobs for part in (f"{job.split()[1]} thread(s), MB/s", "peak MB")]
    note = f"First pass, until the ids are on disk. Ours checks and hashes the text, too. {_RATIO}"
    return _table("Corpus file to token file", note, ["package", *head, "ids"], rows)


def _decoding(results: Results) -> str:
    measured = results.get("decoding", {})
    if not measured:
        return ""
    ours = measured[OURS]
    rows = [
        [_bold(package), *(_seconds_cell(one, ours, f"{key} {which}")
                           for _, key in _DECODING for which in ("first", "again")),
         "equal" if one.equal else "differ"]
        for package, one in measured.items() if one.seconds
    ]  # fmt: skip
    head = [part for title, _ in _DECODING for part in (f"{title}, first", "again")]
    note = f"Milliseconds. {_RATIO}"
    return _table("Ids to text", note, ["package", *head, "result"], rows)


def _start(results: Results) -> str:
    disciplines = ("import", "open", "encode", "learn")
    rows = []
    for job in ("start from nothing", "start"):
        for package, one in results.get(job, {}).items():
            label = f"{package}, nothing compiled yet" if job == "start from nothing" else package
            if one.seconds:
                cells = [f"{one.seconds[name]:.3f}" if name in one.seconds else _MISSING for name in disciplines]
                rows.append([_bold(label), *cells])
    head = ["package", "import", "open tokenizer.json", "encode a first line", "learn from 1 MB"]
    return _table("Start of a process", "Seconds, one after the other.", head, rows)


def _scaling(results: Results) -> str:
    sizes = sorted(int(name.rsplit(" ", 1)[1]) for name in results if name.startswith("scaling training "))
    rows = []
    for size in sizes:
        learning, encoding = (results[f"scaling {kind} {size}"][OURS] for kind in ("training", "file"))
        rows.append([
            f"{size:,} MB", f"{learning.distinct_words:,}", f"{learning.seconds['first']:.2f}",
            f"{learning.rate('first') / _MB:.0f}", f"{learning.peak / _MB:,.0f}", f"{encoding.seconds['first']:.2f}",
            f"{encoding.rate('first') / _MB:.0f}", f"{encoding.peak / _MB:,.0f}",
        ])  # fmt: skip
    head = [
        "text", "distinct words", "learning 32,000 tokens, s", "MB/s", "peak MB", "file to token file, s", "MB/s",
        "peak MB",
    ]  # fmt: skip
    note = "Ours, two threads. Beyond the corpus itself, text is made of it with other words (corpus.py)."
    return _table("Scaling", note, head, rows)


def _rate_cell(one: Measurement, ours: Measurement, discipline: str) -> str:
    if discipline not in one.seconds:
        return "failed" if one.failure else _MISSING
    rate = one.rate(discipline)
    ratio = "" if one is ours else f" ({ours.rate(discipline) / rate:.2f})"
    return f"{rate / _MB:.3g}{ratio}"


def _seconds_cell(one: Measurement, ours: Measurement, discipline: str) -> str:
    if discipline not in one.seconds:
        return _MISSING
    ratio = "" if one is ours else f" ({one.seconds[discipline] / ours.seconds[discipline]:.2f})"
    return f"{one.seconds[discipline] * 1e3:.1f}{ratio}"


def _equality(results: Results, package: str, jobs: Iterable[str]) -> str:
    found = {results[job][package].equal for job in jobs if package in results[job]} - {None}
    return "differ" if False in found else "equal" if found else _MISSING


def _packages(results: Results, jobs: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(package for job in jobs for package in results[job]))


def _by_rate(measured: dict[str, Measurement], discipline: str) -> list[tuple[str, Measurement]]:
    return sorted(measured.items(), key=lambda item: item[1].seconds.get(discipline, float("inf")))


def _bold(package: str) -> str:
    return f"**{package}**" if package.partition(",")[0] == OURS else package


def _table(title: str, note: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", *([note, ""] if note else [])]
    lines += [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
