"""What the page shows, as JSON: the same for a run that is watched and for a report.

A description has *sections*, by name, each of which the page draws by itself; while runs are watched, a section is sent
again when it changes. The points of the curves are sent beside them (`trainer.report.points`). All texts are ready to
show; none of them is markup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from trainer.report.comparison import cautions as find_cautions
from trainer.report.comparison import comparison, duration, state
from trainer.report.points import SHOWN, points_of
from trainer.report.positions import PositionLoss
from trainer.report.profiles import JobProfile
from trainer.report.studies import read_findings
from trainer.runs.results import RunResults

if TYPE_CHECKING:
    from trainer.report.figures import Picture  # imports matplotlib

_MOST_SAMPLES = 12
_MOST_EVENTS = 100
_POSITIONS = (
    ("window", "Validation text in windows, one after another: more text before a token, less loss."),
    ("document", "Each validation document alone, from its first token, up to the context length."),
)

Description = dict[str, Any]
Sample = tuple[int, str]


@dataclass(frozen=True)
class Extras:
    """What a report has beside what the runs' folders say at a glance.

    Attributes:
        samples: Step and text, by run's name, in place of those that the runs kept.
        positions: Loss by position, by run's name.
        pictures: Figures that are images.
        profiles: Where time and memory went.
        notes: What could not be shown.
    """

    samples: Mapping[str, Sequence[Sample]] | None = None
    positions: Mapping[str, PositionLoss] = field(default_factory=dict)
    pictures: "Sequence[Picture]" = ()
    profiles: Sequence[JobProfile] = ()
    notes: Sequence[str] = ()


def describe(runs: Sequence[RunResults], looks: Mapping[str, int], extras: Extras = Extras()) -> Description:
    """The sections.

    Args:
        runs: What is shown.
        looks: A number for each run's name: of its curves' color and dashes, and its place among the points.
        extras: What else is shown.
    """
    studies = read_findings(runs)
    compared = comparison(runs, studies)
    ordered, marks = [row.run for row in compared.rows], {row.run.name: row.mark for row in compared.rows}
    samples = {run.name: run.samples for run in runs} if extras.samples is None else extras.samples

    def named(run: RunResults, **more: Any) -> dict[str, Any]:
        return {"run": looks[run.name], "name": run.name, **more}

    return {
        "notes": {"cautions": find_cautions(runs), "studies": studies.notes},
        "runs": [named(run, mark=marks[run.name]) for run in runs],
        "now": describe_now(runs, looks),
        "comparison": {
            "headings": compared.headings,
            "rows": [
                named(row.run, mark=row.mark, is_best=row.is_best, cells=row.cells, reason=row.run.standing.reason)
                for row in compared.rows
            ],
        },
        "events": [
            named(run, items=run.events[-_MOST_EVENTS:], earlier=max(0, len(run.events) - _MOST_EVENTS))
            for run in ordered
            if run.events
        ],
        "positions": [_positions(kind, note, ordered, looks, extras.positions) for kind, note in _POSITIONS]
        if extras.positions
        else [],
        "pictures": [asdict(each) for each in extras.pictures],
        "samples": [named(run, items=thin_samples(samples[run.name])) for run in ordered if samples.get(run.name)],
        "profiles": [asdict(each) for each in extras.profiles],
        "made": [named(run, **_made(run)) for run in ordered],
        "missing": [*(f"{run.name}: {note}" for run in runs for note in run.notes), *extras.notes],
    }


def title_of(names: Sequence[str]) -> str:
    """The title of a page about runs: their names, or how many they are."""
    return ", ".join(names) if 0 < len(names) <= 3 else f"{len(names)} training runs"


def describe_now(runs: Sequence[RunResults], looks: Mapping[str, int]) -> list[dict[str, Any]]:
    """The section about the runs at work, for which the newest values of their curves are enough."""
    at_work = [run for run in runs if run.standing.kind == "running"]
    return [{"run": looks[run.name], "name": run.name, **_now(run)} for run in at_work]


def curves_of(run: RunResults) -> dict[str, Any]:
    """The points of a run's curves, by key."""
    return {key: points_of(run.curve(key)) for key in SHOWN if len(run.curve(key))}


def to_json(content: object) -> bytes:
    """JSON; halves of surrogate pairs, as names of files may have, become question marks."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return orjson.dumps(_encodable(content))


def _encodable(content: Any) -> Any:
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    if isinstance(content, dict):
        return {_encodable(key): _encodable(value) for key, value in content.items()}
    return [_encodable(value) for value in content] if isinstance(content, list | tuple) else content


def thin_samples(samples: Sequence[Sample]) -> list[Sample]:
    """At most twelve, in order of steps, evenly taken, with the first and the last."""
    ordered = sorted(samples)
    if len(ordered) <= _MOST_SAMPLES:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(place * last / (_MOST_SAMPLES - 1))] for place in range(_MOST_SAMPLES)]


def _now(run: RunResults) -> dict[str, Any]:
    """A run at work, in figures."""
    steps = run.settings.get("max_steps")

    def last(key: str, form: str) -> str:
        value = run.final(key)
        return "" if value is None else format(value, form)

    seconds, left = run.final("seconds"), run.seconds_left
    figures = {
        "loss": last("loss", ".4f"),
        "validation loss": last("validation_loss", ".4f"),
        "learning rate": last("learning_rate", ".3g"),
        "gradient norm": last("grad_norm", ".3g"),
        "tokens/s": last("tokens_per_second", ",.0f"),
        "time": "" if seconds is None else duration(seconds),
        "time left": "" if left is None else duration(left),
    }
    return {
        "state": state(run),
        "share": min(1.0, run.last_step / steps) if isinstance(steps, int) and steps > 0 else None,
        "figures": [[name, value] for name, value in figures.items() if value],
    }


def _positions(
    kind: str,
    note: str,
    runs: Sequence[RunResults],
    looks: Mapping[str, int],
    positions: Mapping[str, PositionLoss],
) -> dict[str, Any]:
    curves = [
        {"run": looks[run.name], "name": run.name, **points_of(getattr(positions[run.name], kind))}
        for run in runs
        if run.name in positions
    ]
    return {"title": f"Loss by position in the {kind}", "note": note, "curves": curves}


def _made(run: RunResults) -> dict[str, Any]:
    """What can be said of how a run was made: its folder, its starts and its settings."""
    starts = [
        {"label": "resumed" if number else "began", "text": _start(start), "command": start["command"]}
        for number, start in enumerate(run.record.get("starts", []))
    ]
    settings = " ".join(f"{name}={value}" for name, value in run.settings.items())
    return {"folder": str(run.folder), "starts": starts, "settings": settings}


def _start(start: Mapping[str, Any]) -> str:
    machine, git, processes = start["machine"], start.get("git"), start["processes"]
    several = f", {processes} processes" if processes > 1 else ""
    code = "of unknown revision" if git is None else git["revision"][:12] + (" with changes" if git["dirty"] else "")
    versions = ", ".join(f"{package} {version}" for package, version in start["versions"].items())
    end = start.get("end")
    where = f"{machine['name']} ({machine['cpu']}, {machine.get('cpus')} CPUs; {start['device']}{several})"
    text = f"{start['time']} at step {start['step']:,} on {where}, code {code}, {versions}"
    if end is None:
        return text
    reason = f": {end['reason']}" if end.get("reason") else ""
    return f"{text}. It {end['how']} at step {end['step']:,}, {end['time']}{reason}"
