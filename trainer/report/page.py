"""The page: the comparison of the runs, and its HTML."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from shared.system.files import write_text
from trainer.report.colors import colors_of
from trainer.report.figures import Picture
from trainer.report.profiles import JobProfile
from trainer.report.studies import StudyFindings
from trainer.runs.json_types import has_type
from trainer.runs.results import RunResults
from trainer.settings.fields import names_affecting
from trainer.settings.train import TrainSettings

_MOST_SAMPLES = 12


@dataclass(frozen=True)
class Row:
    """A run in the comparison table; texts are ready to show."""

    name: str
    color: str
    best: bool
    mark: str
    difference: str
    differing: list[str]
    parameters: str
    bits_per_byte: str
    validation_loss: str
    best_validation_loss: str
    loss: str
    tokens: str
    tokens_per_second: str
    time: str
    state: str


def differing_settings(runs: Sequence[RunResults]) -> list[str]:
    """The settings in which the runs differ, those that a sweep varied first."""
    not_compared = names_affecting(TrainSettings, "watching")
    varied = list(dict.fromkeys(key for run in runs for key in run.changes))
    tables = [_settings(run) for run in runs if run.settings]
    keys = dict.fromkeys(key for table in tables for key in table)
    differing = [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]
    if "vocab_size" in varied:  # what follows from it
        differing = [key for key in differing if key not in ("data", "eval_tokens")]
    return varied + [key for key in differing if key not in varied and key not in not_compared]


def _settings(run: RunResults) -> Mapping[str, Any]:
    return {**run.settings, **run.changes}


def varied_number(runs: Sequence[RunResults]) -> str | None:
    """The one setting that varies beside the seed, if it is a number in every run: what results can be drawn over."""
    varied = list(dict.fromkeys(key for run in runs for key in run.changes)) or differing_settings(runs)
    varied = [name for name in varied if name != "seed"] or varied
    if len(varied) != 1:
        return None
    values = [_settings(run).get(varied[0]) for run in runs]
    return varied[0] if all(has_type(value, float) for value in values) else None


def ranking(runs: Sequence[RunResults]) -> list[RunResults]:
    """Best first: by bits per byte where the vocabularies differ, else by validation loss, else by training loss."""
    key = "bits_per_byte" if len({run.fingerprint for run in runs}) > 1 else "validation_loss"

    def rank(run: RunResults) -> tuple[bool, float, float]:
        value, loss = run.final(key), run.final_loss
        infinity = float("inf")
        return (
            run.status == "diverged",
            infinity if value is None else value,
            infinity if loss is None or loss != loss else loss,  # noqa: PLR0124 - NaN
        )

    return sorted(runs, key=rank)


def comparison(runs: Sequence[RunResults], studies: StudyFindings) -> tuple[list[str], list[Row]]:
    """The names of the differing settings, and a row for each run, best first."""
    names, colors = differing_settings(runs), dict(zip((run.name for run in runs), colors_of(runs), strict=True))
    ranked = ranking(runs)
    comparable = [run for run in ranked if run.status != "diverged" and run.curves]
    best = comparable[0].name if len(comparable) > 1 else None
    return names, [_row(run, names, colors[run.name], studies, best=run.name == best) for run in ranked]


def _row(run: RunResults, names: Sequence[str], color: str, studies: StudyFindings, *, best: bool) -> Row:
    lowest = run.best("validation_loss")
    settings = _settings(run)
    tokens, seconds, speed = run.final("tokens"), run.final("seconds"), run.tokens_per_second
    return Row(
        name=run.name,
        color=color,
        best=best,
        mark="baseline" if run.baseline else studies.marks.get(run.name, ""),
        difference=studies.differences.get(run.name, ""),
        differing=[_value(settings.get(name)) if settings else "" for name in names],
        parameters="" if run.parameters is None else _short(run.parameters),
        bits_per_byte=_number(run.final("bits_per_byte")),
        validation_loss=_number(run.final("validation_loss")),
        best_validation_loss="" if lowest is None else f"{lowest[0]:.4f} at {lowest[1]:,}",
        loss=_number(run.final_loss),
        tokens="" if tokens is None else _short(tokens),
        tokens_per_second="" if speed is None else f"{speed:,.0f}",
        time="" if seconds is None else duration(seconds),
        state=state(run),
    )


def state(run: RunResults) -> str:
    """How the run ended, or how far it is."""
    steps = run.settings.get("max_steps")
    of = f"step {run.last_step:,}" + (f" of {steps:,}" if isinstance(steps, int) else "")
    if run.status == "diverged":
        return f"diverged, {of}"
    return {"finished": "finished", "empty": "no step yet"}.get(run.status, of)


def cautions(runs: Sequence[RunResults]) -> list[str]:
    """Why figures of these runs might not be comparable."""
    found = []
    vocabularies = {run.fingerprint for run in runs if run.fingerprint}
    if len(vocabularies) > 1:
        found.append(
            "The runs have different vocabularies: losses do not compare; bits per byte do, and order the table."
        )
    else:
        texts = {
            ((run.record["data"].get("validation") or {}).get("sha256"), repr(run.settings.get("eval_tokens")))
            for run in runs
            if "data" in run.record
        }
        if len(texts) > 1:
            found.append("The runs were evaluated on different validation tokens: their losses may not compare.")
    unfinished = [run.name for run in runs if run.status in ("unfinished", "empty")]
    if unfinished and len(unfinished) < len(runs):
        found.append(f"Not at their last step: {', '.join(unfinished)}.")
    return found


def thin_samples(samples: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """At most twelve, in order of steps, evenly taken, with the first and the last."""
    ordered = sorted(samples)
    if len(ordered) <= _MOST_SAMPLES:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(place * last / (_MOST_SAMPLES - 1))] for place in range(_MOST_SAMPLES)]


def write_page(
    output: Path,
    runs: Sequence[RunResults],
    *,
    pictures: Sequence[Picture],
    samples: Mapping[str, Sequence[tuple[int, str]]],
    profiles: Sequence[JobProfile],
    notes: Sequence[str],
    studies: StudyFindings,
    figure_folder: Path,
) -> None:
    """Write the page: one file that needs no other and no network.

    Args:
        output: The HTML file.
        runs: In the order of their colors.
        pictures: As `draw_all` gives them.
        samples: Step and text, by run's name.
        profiles: Where time and memory went, of jobs with `--profile`.
        notes: What could not be shown.
        studies: What the sweeps among the runs found.
        figure_folder: Where the figures are as files.
    """
    names, rows = comparison(runs, studies)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((resources.files("trainer.report") / "page.html").read_text(encoding="utf-8"))
    by_name = {run.name: run for run in runs}
    html = template.render(
        title=_title(runs, profiles),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        settings=names,
        rows=rows,
        cautions=cautions(runs),
        notes=notes,
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],  # noqa: S704 - drawn by us, its texts escaped
        samples=[(row, thin_samples(samples.get(row.name, ()))) for row in rows if samples.get(row.name)],
        profiles=profiles,
        events=[(row, by_name[row.name].events) for row in rows if by_name[row.name].events],
        runs=[by_name[row.name] for row in rows],
        studies=studies,
        figure_folder=os.path.relpath(figure_folder, output.parent),
    )
    # A folder's name may contain bytes that are not UTF-8.
    write_text(output, html.encode("utf-8", "replace").decode())


def _title(runs: Sequence[RunResults], profiles: Sequence[JobProfile]) -> str:
    if len(runs) > 3:
        return f"{len(runs)} training runs"
    return ", ".join(each.name for each in runs or profiles)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _short(number: float) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
