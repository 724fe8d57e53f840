"""The comparison of runs: which settings differ, how they rank, and what each one reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.report.studies import StudyFindings
from trainer.runs.json_types import has_type
from trainer.runs.results import RunResults
from trainer.settings.fields import names_affecting
from trainer.settings.train import TrainSettings
from trainer.tokens.manifest import data_hash

_MOST_NAMES = 10


@dataclass(frozen=True)
class Row:
    """A run in the comparison; texts are ready to show.

    Attributes:
        run: Which one.
        is_best: Whether it ranks first among several that did not diverge.
        mark: What it is in its sweep; may be empty.
        cells: One for each heading.
    """

    run: RunResults
    is_best: bool
    mark: str
    cells: list[str]


@dataclass(frozen=True)
class Comparison:
    """The runs beside each other, best first."""

    headings: list[str]
    rows: list[Row]


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


def comparison(runs: Sequence[RunResults], studies: StudyFindings) -> Comparison:
    """A row for each run, best first; the settings that differ are columns."""
    names, ranked = differing_settings(runs), ranking(runs)
    comparable = [run for run in ranked if run.status != "diverged" and run.curves]
    best = comparable[0] if len(comparable) > 1 else None
    headings, rows = names, []
    for run in ranked:
        settings, results = _settings(run), _results(run, studies)
        headings = [*names, *results]
        cells = [_value(settings.get(name)) if settings else "" for name in names]
        mark = "baseline" if run.baseline else studies.marks.get(run.name, "")
        rows.append(Row(run, run is best, mark, [*cells, *results.values()]))
    return Comparison(headings, rows)


def _results(run: RunResults, studies: StudyFindings) -> dict[str, str]:
    """What a run reached, by heading."""
    lowest, speed = run.best("validation_loss"), run.tokens_per_second
    tokens, seconds, left = run.final("tokens"), run.final("seconds"), run.seconds_left
    difference = {"less the baseline's": studies.differences.get(run.name, "")} if studies.differences else {}
    return {
        "parameters": "" if run.parameters is None else short(run.parameters),
        "bits per byte": number(run.final("bits_per_byte")),
        "validation loss": number(run.final("validation_loss")),
        **difference,
        "lowest validation loss": "" if lowest is None else f"{lowest[0]:.4f} at {lowest[1]:,}",
        "training loss": number(run.final_loss),
        "tokens": "" if tokens is None else short(tokens),
        "tokens/s": "" if speed is None else f"{speed:,.0f}",
        "time": "" if seconds is None else duration(seconds),
        "state": state(run) + ("" if left is None else f", {duration(left)} left"),
    }


def state(run: RunResults) -> str:
    """Where the run stands, and how far it is."""
    steps, kind = run.settings.get("max_steps"), run.standing.kind
    of = f"step {run.last_step:,}" + (f" of {steps:,}" if isinstance(steps, int) else "")
    if kind == "running":
        return f"running, {of}" if run.last_step else "starting"
    if run.status == "empty":
        return "no step yet" if kind == "unknown" else f"{kind}, no step yet"
    if run.status == "diverged":
        return f"diverged, {of}"
    # A finished run that was resumed for more steps has a model, and may have been killed since.
    if kind == "finished" or (kind == "unknown" and run.status == "finished"):
        return "finished"
    return of if kind == "unknown" else f"{kind}, {of}"


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
            (data_hash(run.record["data"].get("validation") or {}), repr(run.settings.get("eval_tokens")))
            for run in runs
            if "data" in run.record
        }
        if len(texts) > 1:
            found.append("The runs were evaluated on different validation tokens: their losses may not compare.")
    unfinished = [run.name for run in runs if run.status in ("unfinished", "empty")]
    if unfinished and len(unfinished) < len(runs):
        more = f" and {len(unfinished) - _MOST_NAMES} more" if len(unfinished) > _MOST_NAMES else ""
        found.append(f"Not at their last step: {', '.join(unfinished[:_MOST_NAMES])}{more}.")
    return found


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)


def number(value: float | None) -> str:
    """With four decimals."""
    return "" if value is None else f"{value:.4f}"


def short(value: float) -> str:
    """1234567 as 1.23M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
